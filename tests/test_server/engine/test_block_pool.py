"""The block pool: states of blocks, order of eviction, and prefixes that are found only by the tokens they hold."""

import pytest

from forebay_server.engine.block_pool import BlockPool, CacheNamespace, ConservationError, ParentNode

NAMESPACE = CacheNamespace("", None)


def cache_sequence(pool: BlockPool, token_ids: list[int], namespace: CacheNamespace = NAMESPACE) -> list[int]:
    """Hold blocks for a sequence and cache its full ones."""
    blocks = pool.allocate(pool.num_blocks_for(len(token_ids)))
    assert blocks is not None
    parent: ParentNode = namespace
    for index in range(len(token_ids) // pool.block_size):
        parent = pool.remember(parent, token_ids, index, blocks[index])
    return blocks


def test_every_block_can_be_allocated_and_not_one_more() -> None:
    pool = BlockPool(5, 4)
    assert pool.allocate(6) is None
    assert pool.num_available == 5
    blocks = pool.allocate(5)
    assert blocks is not None
    assert sorted(blocks) == [0, 1, 2, 3, 4]
    assert pool.num_held == 5
    assert pool.allocate(1) is None


def test_prefix_is_found_after_its_owner_has_gone() -> None:
    pool = BlockPool(8, 4)
    tokens = list(range(10))
    blocks = cache_sequence(pool, tokens)
    pool.release(blocks)
    assert pool.find_prefix(NAMESPACE, [*tokens, 77], 9) == blocks[:2]
    assert pool.find_prefix(NAMESPACE, [0, 1, 2, 3, 9, 9, 9, 9], 9) == blocks[:1]
    assert pool.find_prefix(NAMESPACE, [1, *tokens], 9) == []


def test_same_block_behind_another_prefix_is_not_found() -> None:
    pool = BlockPool(8, 2)
    pool.release(cache_sequence(pool, [1, 1, 5, 5]))
    pool.release(cache_sequence(pool, [2, 2]))
    assert len(pool.find_prefix(NAMESPACE, [1, 1, 5, 5], 9)) == 2
    assert len(pool.find_prefix(NAMESPACE, [2, 2, 5, 5], 9)) == 1


def test_colliding_hashes_do_not_confuse_prefixes() -> None:
    # in CPython hash(-1) == hash(-2), so these tuples have equal hashes
    assert hash((-1, -1)) == hash((-2, -2))
    pool = BlockPool(8, 2)
    pool.release(cache_sequence(pool, [-1, -1]))
    assert pool.find_prefix(NAMESPACE, [-2, -2], 9) == []


def test_salts_and_adapters_do_not_share() -> None:
    pool = BlockPool(8, 2)
    pool.release(cache_sequence(pool, [1, 2], CacheNamespace("a", None)))
    assert pool.find_prefix(CacheNamespace("b", None), [1, 2], 9) == []
    assert pool.find_prefix(CacheNamespace("a", "adapter"), [1, 2], 9) == []
    assert len(pool.find_prefix(CacheNamespace("a", None), [1, 2], 9)) == 1


def test_worthless_blocks_go_first_then_the_end_of_the_least_recently_used_prefix() -> None:
    pool = BlockPool(6, 2)
    old = cache_sequence(pool, [1, 1, 2, 2])
    new = cache_sequence(pool, [3, 3, 4, 4])
    pool.release(old)
    pool.release(new)
    plain = pool.allocate(2)
    assert plain is not None
    assert not {*plain} & {*old, *new}
    assert pool.allocate(1) == [old[1]]
    assert pool.allocate(1) == [old[0]]
    assert pool.allocate(1) == [new[1]]


def test_prefix_that_is_held_again_is_not_evicted() -> None:
    pool = BlockPool(3, 2)
    blocks = cache_sequence(pool, [1, 1, 2, 2])
    pool.release(blocks)
    pool.hold(pool.find_prefix(NAMESPACE, [1, 1, 2, 2], 9))
    assert pool.num_available == 1
    assert pool.allocate(2) is None
    pool.check([blocks])


def test_evicted_block_is_not_found_and_breaks_the_chain_behind_it() -> None:
    pool = BlockPool(2, 2)
    blocks = cache_sequence(pool, [1, 1, 2, 2])
    pool.release(blocks)
    assert pool.allocate(1) == [blocks[1]]
    assert pool.find_prefix(NAMESPACE, [1, 1, 2, 2], 9) == blocks[:1]
    assert pool.allocate(1) == [blocks[0]]
    assert pool.find_prefix(NAMESPACE, [1, 1, 2, 2], 9) == []


def test_twin_computed_at_the_same_time_shares_what_comes_after() -> None:
    pool = BlockPool(8, 2)
    first = cache_sequence(pool, [1, 1])
    twin = cache_sequence(pool, [1, 1, 2, 2])
    pool.release(first)
    pool.release(twin)
    assert pool.find_prefix(NAMESPACE, [1, 1, 2, 2], 9) == [first[0], twin[1]]


def test_reset_forgets_prefixes_but_not_holders() -> None:
    pool = BlockPool(4, 2)
    held = cache_sequence(pool, [1, 1])
    pool.release(cache_sequence(pool, [2, 2]))
    pool.reset_cache()
    assert pool.find_prefix(NAMESPACE, [1, 1], 9) == []
    assert pool.find_prefix(NAMESPACE, [2, 2], 9) == []
    pool.check([held])
    pool.release(held)
    pool.check([])


def test_releasing_twice_is_an_error() -> None:
    pool = BlockPool(2, 2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(ConservationError, match="nobody holds"):
        pool.release(blocks)


def test_check_sees_a_block_that_its_holder_forgot() -> None:
    pool = BlockPool(2, 2)
    pool.allocate(1)
    with pytest.raises(ConservationError, match="holders"):
        pool.check([])
