"""A metadata store in memory that loses some writes, or their answers."""

from __future__ import annotations

from typing import TypeVar

from anabranch.metadata.embedded import Op
from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.memory import MemoryMetadata

T = TypeVar("T")


class LossyMetadata(MemoryMetadata):
    """`lost_before` and `lost_after` are how many of the next writes, and of their answers, are lost."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now = 1
        self.lost_before = self.lost_after = 0
        # A path and a value, put over a write whose answer is lost.
        self.meanwhile: tuple[str, bytes] | None = None

    async def run(
        self,
        op: Op[T],
        *,
        node: str | None = None,
        folder: str | None = None,
        writes: str | None = None,
        always: bool = False,
    ) -> T:
        if writes is not None and self.lost_before:
            self.lost_before -= 1
            raise StoreUnavailable("lost on its way")
        found = await super().run(op, node=node, folder=folder, writes=writes, always=always)
        if writes is not None and self.lost_after:
            self.lost_after -= 1
            if (later := self.meanwhile) is not None:
                await super().run(lambda tree: tree.put(*later, None))
            raise StoreUnavailable("the answer was lost")
        return found
