"""Data plane. Memory that is used again: the first touch of fresh memory costs more than what a kernel does in it.

A `Pool` leases memory to NumPy arrays and Arrow buffers. No call gives it back: when the last array, buffer, view or
slice that refers to a lease is gone, wherever the user kept it, the memory is free for the next lease. So memory that
users hold is never overwritten.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.columns.memory import SLACK

Bytes = npt.NDArray[np.uint8]

# Leases below this are not worth keeping: the allocator of the process keeps them itself.
_KEPT_BYTES_MIN: Final = 64 * 1024


class Lease:
    """A piece of memory, in use as long as something refers to it. `size` bytes may be used, `SLACK` more written."""

    __slots__ = ("_memory", "_pool", "address", "size")

    def __init__(self, pool: Pool, memory: Bytes, size: int) -> None:
        self._pool = pool
        self._memory = memory
        self.size = size
        self.address: int = memory.__array_interface__["data"][0]

    def __del__(self) -> None:
        self._pool._take_back(self._memory)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.size,), "typestr": "|u1", "data": (self.address, False)}

    def array(self, size: int) -> Bytes:
        """The first `size` bytes."""
        return np.asarray(self)[:size]

    def buffer(self, offset: int, size: int) -> pa.Buffer:
        """Those bytes for Arrow."""
        return pa.foreign_buffer(self.address + offset, size, self)


class Pool:
    """Keeps up to `bytes_max` of memory that is not in use. Safe to use from several threads."""

    def __init__(self, bytes_max: int = 256 * 1024 * 1024) -> None:
        self.bytes_max = bytes_max
        # By size. Lists, because their append and pop cannot be interrupted: leases end in any thread at any time.
        self._free: dict[int, list[Bytes]] = {}
        self._idle = 0

    @property
    def idle_bytes(self) -> int:
        """About how many bytes are kept for later leases."""
        return self._idle

    def lease(self, size: int) -> Lease:
        """At least `size` bytes of any content."""
        rounded = _rounded(size + SLACK)
        try:
            memory = self._free[rounded].pop()
            self._idle -= rounded
        except (KeyError, IndexError):
            memory = np.empty(rounded, np.uint8)
        return Lease(self, memory, size)

    def clear(self) -> None:
        """Frees the memory that is not in use."""
        self._free = {}
        self._idle = 0

    def _take_back(self, memory: Bytes) -> None:
        size = len(memory)
        if size >= _KEPT_BYTES_MIN and self._idle + size <= self.bytes_max:
            self._idle += size
            self._free.setdefault(size, []).append(memory)


def _rounded(size: int) -> int:
    """The size rounded up to the next of eight steps between two powers of two, so that leases of similar sizes share
    memory."""
    step = max(64, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
