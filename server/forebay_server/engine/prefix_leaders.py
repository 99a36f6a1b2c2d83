"""Who is computing the block that a waiting request needs next: it waits to find it, rather than compute it too."""

from collections.abc import Iterable

from forebay_server.engine.block_pool import BlockKey, BlockPool
from forebay_server.engine.request import Request, RequestStatus


class PrefixLeaders:
    """The next block of each running request, during one `schedule()`.

    Args:
        pool: that knows the cached blocks.
        running: the requests that hold blocks.
    """

    def __init__(self, pool: BlockPool, running: Iterable[Request]) -> None:
        self._pool = pool
        self._leader_by_block: dict[BlockKey, Request] = {}
        for request in running:
            self.add(request)

    def add(self, request: Request) -> None:
        """Count in a request that was just admitted."""
        key = self._pool.key_of(request.last_node, request.token_ids, request.num_hashed_blocks)
        if key is not None:
            self._leader_by_block.setdefault(key, request)

    def find(self, request: Request, cached: list[int]) -> None:
        """Note in a waiting request whom it should follow, and for how many blocks.

        Args:
            request: waiting.
            cached: the blocks that the prefix cache has of it.
        """
        num_wanted = request.max_cached_tokens // self._pool.block_size
        if len(cached) >= num_wanted:
            return
        parent = self._pool.node_of(cached[-1]) if cached else request.namespace
        key = self._pool.key_of(parent, request.token_ids, len(cached))
        leader = None if key is None else self._leader_by_block.get(key)
        if leader is not None:
            pairs = enumerate(zip(request.token_ids, leader.token_ids, strict=False))
            num_shared = next((index for index, (own, other) in pairs if own != other), len(leader.token_ids))
            request.leader = leader
            request.num_leader_blocks = min(num_shared // self._pool.block_size, num_wanted)


def is_following(request: Request) -> bool:
    """Whether a waiting request has a leader that still computes what they share."""
    leader = request.leader
    if leader is None:
        return False
    if leader.status is RequestStatus.RUNNING and leader.num_hashed_blocks < request.num_leader_blocks:
        return True
    request.leader = None
    return False
