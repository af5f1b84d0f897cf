"""An object store in memory: for tests, simulations, and for learning what the port demands."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.storage.object.medium import Created, MediumError, MediumMissingError, MediumRefusedError
from anabranch.storage.port import Buffer


class MemoryBucket:
    """Implements `ObjectMedium`. Several logs may use one of them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        return self.create_now(key, b"".join(parts))

    def create_now(self, key: str, data: bytes) -> Created:
        if key in self.objects:
            return Created.EXISTS
        self.objects[key] = data
        return Created.STORED

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        data = self.objects.get(key)
        if data is None:
            raise MediumMissingError(f"there is no object {key}")
        if start and start >= len(data):
            raise MediumError(f"{key} has {len(data)} bytes, and none at {start}")
        return data[start:] if length is None else data[start : start + length]

    async def list(self, folder: str, after: str = "") -> list[tuple[str, int]]:
        prefix = f"{folder}/"
        return sorted(
            (key, len(data)) for key, data in self.objects.items() if key.startswith(prefix) and key > after
        )

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    async def sign(self, key: str, seconds: int) -> str:
        raise MediumRefusedError("a store in memory signs nothing")

    def url(self, key: str) -> str:
        return f"memory:///{key}"

    async def close(self) -> None:
        """The objects stay."""
