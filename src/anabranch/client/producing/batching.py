"""How messages are joined into entries, and how a producer shares a topic with others: settings, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from anabranch.client.errors import BadArgument, Unsupported
from anabranch.errors import UnsupportedCompression
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import compress

Compression: TypeAlias = Literal["none", "lz4", "zlib", "zstd", "snappy"]
Access: TypeAlias = Literal["shared", "exclusive", "wait", "fencing"]

COMPRESSIONS: Final[dict[str, int]] = {
    "none": pb.NONE,
    "lz4": pb.LZ4,
    "zlib": pb.ZLIB,
    "zstd": pb.ZSTD,
    "snappy": pb.SNAPPY,
}
ACCESS_MODES: Final[dict[str, int]] = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "wait": pb.WaitForExclusive,
    "fencing": pb.ExclusiveWithFencing,
}


@dataclass(frozen=True, slots=True)
class Batching:
    """A batch is sent when it is full, when its first message has waited `delay_ms`, or when nothing of its segment is
    under way: a message sent alone does not wait."""

    delay_ms: float = 1.0
    messages_max: int = 1000
    bytes_max: int = 128 * 1024

    def __post_init__(self) -> None:
        if self.delay_ms < 0 or self.messages_max < 1 or self.bytes_max < 1:
            raise BadArgument(f"{self}: delay_ms must not be negative, and both limits at least 1")


def batching_of(given: bool | Batching) -> Batching | None:
    """The settings; None for no batches."""
    if isinstance(given, Batching):
        return given
    return Batching() if given else None


def compression_of(name: str) -> int:
    found = COMPRESSIONS.get(name)
    if found is None:
        raise BadArgument(f"compression={name!r}: choose one of {', '.join(COMPRESSIONS)}")
    try:
        compress(found, b"")
    except UnsupportedCompression as error:
        raise Unsupported(f"compression={name!r}: {error}; pip install anabranch[compression]") from None
    return found


def access_of(name: str) -> int:
    found = ACCESS_MODES.get(name)
    if found is None:
        raise BadArgument(f"access={name!r}: choose one of {', '.join(ACCESS_MODES)}")
    return found
