"""BlockPool: which KV blocks are held, which are free, and which still hold a prefix that may be wanted again.

No tensors. The prefix cache is a chain: a full block is known by (its parent in the chain, its own token ids), and the
first block's parent is the namespace (cache salt, adapter). A parent is named by a number that it got when it was
cached and that is never given again, so a lookup compares every token and cannot confuse two prefixes, whatever they
hash to.

Every block is in exactly one of three states: held (by one or more requests), cached (by none, its content known),
free (by none, content worthless). Cached and free blocks both stand in one list from which new blocks are taken: the
worthless ones first, then the least recently used.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class CacheNamespace(NamedTuple):
    """Prefixes are shared within one namespace only."""

    salt: str
    adapter: str | None


ParentNode = int | CacheNamespace
BlockKey = tuple[ParentNode, tuple[int, ...]]


class ConservationError(Exception):
    """Blocks were lost or counted twice: a fault in this program."""


class BlockPool:
    """All blocks of one KV cache.

    Args:
        num_blocks: blocks in the pool; all of them can be used.
        block_size: tokens in a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._num_holders = [0] * num_blocks
        self._unheld: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        """Blocks without holder; taken from the front. OrderedDict: O(1) to take out of the middle."""
        self._block_by_key: dict[BlockKey, int] = {}
        self._key_by_block: list[BlockKey | None] = [None] * num_blocks
        self._node_by_block = [0] * num_blocks
        self._next_node = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated: free and cached ones."""
        return len(self._unheld)

    @property
    def num_held(self) -> int:
        """Blocks that requests hold."""
        return self.num_blocks - len(self._unheld)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the whole pool can keep."""
        return self.num_blocks * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Take blocks, held once each; None (and nothing taken) when there are not enough. Their content is garbage."""
        if num_blocks > len(self._unheld):
            return None
        taken = []
        for _ in range(num_blocks):
            block_id, _ = self._unheld.popitem(last=False)
            self._forget(block_id)
            self._num_holders[block_id] = 1
            taken.append(block_id)
        return taken

    def find_prefix(self, namespace: ParentNode, token_ids: Sequence[int], max_blocks: int) -> list[int]:
        """The longest chain of cached or held blocks that a sequence begins with. Nothing is changed.

        Args:
            namespace: where to look.
            token_ids: of the sequence.
            max_blocks: no longer chain than this.
        """
        found: list[int] = []
        parent = namespace
        for index in range(max_blocks):
            block_id = self._block_by_key.get((parent, self._tokens_of_block(token_ids, index)))
            if block_id is None:
                break
            found.append(block_id)
            parent = self._node_by_block[block_id]
        return found

    def num_unheld_in(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks nobody holds: holding them leaves so many fewer available."""
        return sum(1 for block_id in block_ids if block_id in self._unheld)

    def hold(self, block_ids: Iterable[int]) -> None:
        """Become one more holder of each block."""
        for block_id in block_ids:
            self._num_holders[block_id] += 1
            self._unheld.pop(block_id, None)

    def release(self, block_ids: Sequence[int]) -> None:
        """Stop holding the blocks of one sequence, given in its order.

        Those whose content is known stay findable until they are needed: the end of a sequence goes before its start.

        Raises:
            ConservationError: a block has no holder.
        """
        for block_id in reversed(block_ids):
            if self._num_holders[block_id] < 1:
                raise ConservationError(f"block {block_id} is released but nobody holds it")
            self._num_holders[block_id] -= 1
            if self._num_holders[block_id] == 0:
                self._unheld[block_id] = None
                if self._key_by_block[block_id] is None:
                    self._unheld.move_to_end(block_id, last=False)

    def remember(self, parent: ParentNode, token_ids: Sequence[int], index: int, block_id: int) -> int:
        """Make a computed block findable; when its content is already known, the known block stays the one found.

        Args:
            parent: node of the block before it, or the namespace.
            token_ids: of the whole sequence.
            index: of the block in the sequence.
            block_id: the block.

        Returns:
            The node to name as parent of the next block.
        """
        key = (parent, self._tokens_of_block(token_ids, index))
        known = self._block_by_key.get(key)
        if known is not None:
            return self._node_by_block[known]
        self._forget(block_id)
        self._next_node += 1
        self._block_by_key[key] = block_id
        self._key_by_block[block_id] = key
        self._node_by_block[block_id] = self._next_node
        return self._next_node

    def key_of(self, parent: ParentNode, token_ids: Sequence[int], index: int) -> BlockKey | None:
        """What a block of a sequence is known by; None when it is not full.

        Args:
            parent: node of the block before it, or the namespace.
            token_ids: known ones of the sequence.
            index: of the block in the sequence.
        """
        tokens = self._tokens_of_block(token_ids, index)
        return (parent, tokens) if len(tokens) == self.block_size else None

    def node_of(self, block_id: int) -> int:
        """The node of a block that `find_prefix` returned."""
        return self._node_by_block[block_id]

    def reset_cache(self) -> None:
        """Forget the content of every block; requests keep what they hold."""
        self._block_by_key.clear()
        self._key_by_block = [None] * self.num_blocks

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Compare the pool's books with what the holders say they hold (debug mode; O(blocks)).

        Raises:
            ConservationError: free + cached + held is not the total, or a count of holders is wrong.
        """
        counted = Counter(block_id for block_ids in held for block_id in block_ids)
        for block_id, num_holders in enumerate(self._num_holders):
            if counted[block_id] != num_holders:
                raise ConservationError(f"block {block_id} has {counted[block_id]} holders, {num_holders} in the books")
            if (num_holders == 0) != (block_id in self._unheld):
                raise ConservationError(f"block {block_id} has {num_holders} holders and stands in the wrong list")
        for key, block_id in self._block_by_key.items():
            if self._key_by_block[block_id] != key:
                raise ConservationError(f"the prefix cache finds block {block_id} under a key that is not its own")

    def _forget(self, block_id: int) -> None:
        key = self._key_by_block[block_id]
        if key is not None:
            del self._block_by_key[key]
            self._key_by_block[block_id] = None

    def _tokens_of_block(self, token_ids: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(token_ids[index * self.block_size : (index + 1) * self.block_size])
