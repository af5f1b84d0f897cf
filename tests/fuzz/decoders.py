"""Coverage-guided bytes for what reads bytes from the network: frames, commands, entries, batches, packed payloads.

Run by `make fuzz`; it needs atheris, which only that target installs. Whatever the bytes are, the decoders may only
give frames or raise a PeerError: anything else is a crash that ends the run and leaves its input in `.fuzz`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

if importlib.util.find_spec("atheris") is None:
    sys.exit("atheris has no package for this Python: make a venv with PYTHON=python3.11, 3.12 or 3.13")
# By name: it is not among the packages that everything else is checked with.
atheris: Any = importlib.import_module("atheris")

with atheris.instrument_imports(include=["anabranch.wire", "anabranch.client.message"]):
    from anabranch.errors import PeerError
    from anabranch.wire import batch, entry
    from anabranch.wire import pulsar_pb2 as pb
    from anabranch.wire.connection import Connection, Role
    from anabranch.wire.frames import SEND, FrameDecoder, verify

VECTORS = Path(__file__).parents[1] / "vectors"
MESSAGE_BYTES_MAX = 1 << 16


def feed(data: bytes, cut: int) -> None:
    """The same frames, or the same refusal, in one piece and in two."""
    whole, parts = (FrameDecoder(frame_bytes_max=MESSAGE_BYTES_MAX) for _ in range(2))
    found = _outcome(whole, [data])
    assert found == _outcome(parts, [data[:cut], data[cut:]]), "a cut changes what is read"


def _outcome(decoder: FrameDecoder, pieces: list[bytes]) -> list[str]:
    frames: list[str] = []
    for piece in pieces:
        try:
            frames += [
                repr([bytes(part) if isinstance(part, memoryview) else part for part in frame])
                for frame in decoder.feed(piece)
            ]
        except PeerError as error:
            # How much is read before a refusal depends on the cut; that it is refused does not.
            return [type(error).__name__]
    return frames


def converse(data: bytes) -> None:
    """Both sides of a connection take anything."""
    for role in Role:
        connection = Connection(role, now=0.0, keep_alive_s=30, message_bytes_max=MESSAGE_BYTES_MAX)
        with contextlib.suppress(PeerError):
            for frame in connection.feed(data, 1.0):
                if frame[0] == SEND:
                    read(bytes(frame[6]))
        connection.to_send()


def read(data: bytes) -> None:
    """An entry, as a broker and a client look at it."""
    with contextlib.suppress(PeerError):
        verify(data)
    with contextlib.suppress(PeerError):
        metadata = entry.parse_metadata(data)
        entry.sequence_ids(metadata)
        entry.chunk(metadata)
        entry.sticky_key(metadata)
        entry.peek_sticky_key(data)
        entry.publish_time(data)
    with contextlib.suppress(PeerError):
        metadata, payload = batch.open_entry(data)
        if metadata.num_chunks_from_msg < 2 and not metadata.encryption_keys:
            batch.unpack(metadata, payload, size_max=MESSAGE_BYTES_MAX)


def unpack(data: bytes) -> None:
    kinds = list(pb.CompressionType.values())
    kind, size = kinds[data[0] % len(kinds)], int.from_bytes(data[1:4], "big")
    with contextlib.suppress(PeerError):
        batch.decompress(kind, data[4:], size, size_max=MESSAGE_BYTES_MAX)


def one(data: bytes) -> None:
    if len(data) < 5:
        return
    rest = data[2:]
    match data[0] % 4:
        case 0:
            feed(rest, data[1] * len(rest) // 255)
        case 1:
            converse(rest)
        case 2:
            read(rest)
        case 3:
            unpack(rest)


def corpus(folder: Path) -> None:
    """Real conversations to start from."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(VECTORS.glob("*.hex")):
        frames = [
            bytes.fromhex(line[2:]) for line in path.read_text().splitlines() if line[:1] in "<>" and line[:1]
        ]
        for number, frame in enumerate(frames):
            for way in (0, 1):
                (folder / f"{path.stem}-{number}-{way}").write_bytes(bytes([way, 100]) + frame)
        (folder / f"{path.stem}-all").write_bytes(b"\x01\x00" + b"".join(frames))


def main() -> None:
    folder = Path(os.environ.get("FUZZ_CORPUS", ".fuzz/decoders"))
    corpus(folder)
    seconds = os.environ.get("FUZZ_SECONDS", "600")
    options = [
        f"-artifact_prefix={folder.parent}/",
        f"-max_total_time={seconds}",
        "-max_len=8192",
        "-timeout=10",
        "-rss_limit_mb=2048",
    ]
    atheris.Setup([sys.argv[0], str(folder), *options, *sys.argv[1:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
