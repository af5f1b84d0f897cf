"""Lists of attempts that are too long for one value of the metadata store: their beginnings are stored as separate
parts.

A part is stored before the record that names it, and never changes. A part that no record names, because another broker
was quicker or this one died between the two, is removed when it is old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import uuid4

import msgspec

from anabranch.metadata.port import MetadataStore
from anabranch.model.hidden_writes import WriteBatch

PARTS: Final = "/hidden-write-parts"
# The most attempts in a part, and in a record itself, winners and dropped ones each: 35 bytes per attempt.
ATTEMPTS_MAX: Final = 10_000


class PartName(msgspec.Struct, frozen=True, array_like=True):
    """The name of a part, and its number of attempts."""

    name: str
    count: int


class _Part(msgspec.Struct, frozen=True):
    write: str
    batch: int
    attempts: tuple[str, ...]


_decode = msgspec.json.Decoder(_Part).decode
_encode = msgspec.json.Encoder().encode


class WriteParts:
    def __init__(self, metadata: MetadataStore, attempts_max: int = ATTEMPTS_MAX) -> None:
        self._metadata = metadata
        self._attempts_max = attempts_max

    async def joined(self, parts: Sequence[PartName], rest: tuple[str, ...]) -> tuple[str, ...] | None:
        """The whole list. None if a part is missing: the record that named it is gone, too."""
        whole: list[str] = []
        for part in parts:
            found = await self._metadata.get(_path(part.name))
            if found is None:
                return None
            whole += _decode(found.value).attempts
            # Each part takes some milliseconds.
            await asyncio.sleep(0)
        return (*whole, *rest) if whole else rest

    async def cut(
        self, batch: WriteBatch, attempts: tuple[str, ...], before: tuple[PartName, ...], made: list[str]
    ) -> tuple[tuple[PartName, ...], tuple[str, ...]]:
        """The parts of a list, and the rest of it. The list begins with the attempts in the parts of `before`.

        The names of new parts are appended to `made`.
        """
        parts, rest = list(before), attempts[sum(part.count for part in before) :]
        while len(rest) > self._attempts_max:
            taken, rest = rest[: self._attempts_max], rest[self._attempts_max :]
            name = uuid4().hex
            made.append(name)
            await self._metadata.create(_path(name), _encode(_Part(batch.write, batch.batch, taken)))
            parts.append(PartName(name, len(taken)))
        return tuple(parts), rest

    async def remove(self, names: Iterable[str]) -> None:
        for name in names:
            await self._metadata.delete(_path(name))

    async def old(self, before_ms: int) -> list[tuple[str, WriteBatch]]:
        """The parts older than that, and the batches that they were stored for."""
        found: list[tuple[str, WriteBatch]] = []
        for name in await self._metadata.children(PARTS):
            part = await self._metadata.get(_path(name))
            if part is not None and part.modified_ms < before_ms:
                value = _decode(part.value)
                found.append((name, WriteBatch(value.write, value.batch)))
        return found


def _path(name: str) -> str:
    return f"{PARTS}/{name}"
