"""The blocks of each running request as an array: converting long lists in every step would cost more than the rest."""

import numpy as np
import numpy.typing as npt


class BlockRows:
    """Remembers the requests of the step before; a request's list is only appended to, or replaced by another list."""

    def __init__(self) -> None:
        self._before: dict[str, _Row] = {}
        self._now: dict[str, _Row] = {}

    def start_step(self) -> None:
        """Forget requests that were not in the step before."""
        self._before, self._now = self._now, {}

    def of(self, request_id: str, block_ids: list[int]) -> npt.NDArray[np.int32]:
        """[len(block_ids)], int32."""
        row = self._before.get(request_id)
        if row is None or row.source is not block_ids:
            row = _Row(block_ids)
        self._now[request_id] = row
        return row.array()


class _Row:
    """One request's blocks."""

    __slots__ = ("_array", "_count", "source")

    def __init__(self, source: list[int]) -> None:
        self.source = source
        self._array = np.empty(0, dtype=np.int32)
        self._count = 0

    def array(self) -> npt.NDArray[np.int32]:
        """The blocks that the list has now."""
        count = len(self.source)
        if count > self._count:
            if count > len(self._array):
                grown = np.empty(max(16, 2 * count), dtype=np.int32)
                grown[: self._count] = self._array[: self._count]
                self._array = grown
            self._array[self._count : count] = self.source[self._count :]
            self._count = count
        return self._array[:count]
