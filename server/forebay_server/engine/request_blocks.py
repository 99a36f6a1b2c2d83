"""What requests hold of the block pool: found in the prefix cache, grown, remembered for others, given back."""

from collections.abc import Sequence

from forebay_server.engine.block_pool import BlockPool
from forebay_server.engine.request import Request


class RequestBlocks:
    """Keeps a request's block table and the pool's books together.

    Args:
        pool: the blocks.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def find_cached(self, request: Request) -> list[int]:
        """What the prefix cache has of a waiting request, less tokens whose logits are wanted, such as the last."""
        max_blocks = request.max_cached_tokens // self._pool.block_size
        return self._pool.find_prefix(request.namespace, request.token_ids, max_blocks)

    def hold_cached(self, request: Request, cached: Sequence[int]) -> bool:
        """Begin a request that holds nothing with cached blocks, if all its known tokens have room; else do nothing."""
        pool = self._pool
        num_needed = pool.num_blocks_for(len(request.token_ids)) - len(cached) + pool.num_unheld_in(cached)
        if num_needed > pool.num_available:
            return False
        if cached:
            pool.hold(cached)
            request.block_ids = list(cached)
            request.num_slots = request.num_computed_tokens = len(cached) * pool.block_size
            request.num_hashed_blocks = len(cached)
            request.last_node = pool.node_of(cached[-1])
        return True

    def grow(self, request: Request, num_new: int) -> list[int] | None:
        """Take the blocks that `num_new` more tokens need; None, and nothing taken, when there are not enough.

        Returns:
            The blocks that are new to the request, often none.
        """
        num_tokens = request.num_computed_tokens + num_new
        blocks = self._pool.allocate(self._pool.num_blocks_for(num_tokens) - len(request.block_ids))
        if blocks:
            request.block_ids.extend(blocks)
            request.num_slots += len(blocks) * self._pool.block_size
        return blocks

    def remember(self, request: Request, num_done: int) -> None:
        """Make the blocks findable that are full of computed tokens, of which there are `num_done`."""
        for index in range(request.num_hashed_blocks, num_done // self._pool.block_size):
            block_id = request.block_ids[index]
            request.last_node = self._pool.remember(request.last_node, request.token_ids, index, block_id)
            request.num_hashed_blocks = index + 1

    def release(self, request: Request) -> None:
        """Give everything back."""
        self._pool.release(request.block_ids)
        request.reset_blocks()
