"""Rewriting: copies live records out of files that are mostly dead, one ledger after the other.

A job names source files with the stretches wanted from each; its outputs are `.led` files under the namespace's folder,
in the same record and footer format. Small ledgers of a namespace share a file; a large ledger has its own. Records are
copied as they are, and checked on the way: a source with a damaged record is not replaced at all.

`plan_outputs` is pure. `run_job` blocks for long: it runs in a process of its own (`rewrite_worker.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk.catalog import LogFile
from anabranch.storage.on_disk.files import Files
from anabranch.storage.on_disk.indexing import load_file
from anabranch.storage.on_disk.names import LedgerName, Names, encode_names
from anabranch.storage.on_disk.reader import check_entry, span_end

SUFFIX = ".led"


class Piece(msgspec.Struct, frozen=True):
    """Entries [first, end) of a ledger in one source file, and their bytes with record headers."""

    source: int
    ledger: int
    first: int
    end: int
    size: int


class Output(msgspec.Struct, frozen=True):
    folder: str
    name: str
    pieces: list[Piece]
    # The records that name the ledgers, as far as known.
    names: dict[int, LedgerName] = {}


class RewriteJob(msgspec.Struct, frozen=True):
    # (path, file number, whether it is a rewritten file itself)
    sources: list[tuple[str, int, bool]]
    outputs: list[Output]


class RewriteDone(msgspec.Struct, frozen=True):
    """The files written, or the sources that cannot be copied because a record in them is damaged."""

    paths: list[str]
    damaged: list[int]


class _DamagedSource(Exception):
    def __init__(self, source: int) -> None:
        self.source = source


def namespace_folder(root: Path, namespace: str) -> Path:
    """The folder for rewritten files of a namespace. Any name makes a folder below `root`, and no two share one."""
    parts = [quote(part, safe="").replace(".", "%2E") or "%" for part in namespace.split("/")]
    return root.joinpath("ledgers", *parts)


def plan_outputs(
    pieces: Iterable[tuple[str, Piece]],
    generation: int,
    root: Path,
    *,
    file_bytes: int,
    name_of: Callable[[int], LedgerName | None] = lambda _: None,
) -> list[Output]:
    """Groups (namespace, piece) into files: sorted by ledger, each namespace separate, each large ledger separate."""
    by_namespace: dict[str, dict[int, list[Piece]]] = {}
    for namespace, piece in pieces:
        by_namespace.setdefault(namespace, {}).setdefault(piece.ledger, []).append(piece)
    outputs: list[Output] = []

    def add(namespace: str, group: Sequence[Piece]) -> None:
        name = f"{generation:012d}-{len(outputs):04d}-{secrets.token_hex(4)}{SUFFIX}"
        names = {piece.ledger: name_of(piece.ledger) for piece in group}
        known = {ledger: one for ledger, one in names.items() if one is not None}
        outputs.append(Output(str(namespace_folder(root, namespace)), name, list(group), known))

    for namespace, ledgers in sorted(by_namespace.items()):
        shared: list[Piece] = []
        shared_size = 0
        for _, group in sorted(ledgers.items()):
            group = sorted(group, key=lambda piece: piece.first)
            size = sum(piece.size for piece in group)
            if size > file_bytes // 4:
                for chunk in _chunks(group, file_bytes):
                    add(namespace, chunk)
                continue
            if shared and shared_size + size > file_bytes:
                add(namespace, shared)
                shared, shared_size = [], 0
            shared += group
            shared_size += size
        if shared:
            add(namespace, shared)
    return outputs


def _chunks(pieces: Sequence[Piece], size_max: int) -> Iterable[list[Piece]]:
    chunk: list[Piece] = []
    size = 0
    for piece in pieces:
        if chunk and size + piece.size > size_max:
            yield chunk
            chunk, size = [], 0
        chunk.append(piece)
        size += piece.size
    yield chunk


def run_job(files: Files, job: RewriteJob) -> RewriteDone:
    """Writes every output, synced, under its final name; or nothing, and returns which sources are damaged."""
    sources: list[LogFile] = []
    for path, number, is_rewritten in job.sources:
        loaded = load_file(files, Path(path), number, is_rewritten=is_rewritten)
        if loaded is None:
            return RewriteDone([], [len(sources)])
        sources.append(loaded)
    paths: list[str] = []
    try:
        for output in job.outputs:
            paths.append(str(_write_output(files, sources, output)))  # noqa: PERF401 - undone on an error
    except _DamagedSource as error:
        for path in paths:
            files.unlink(Path(path))
        return RewriteDone([], [error.source])
    return RewriteDone(paths, [])


def _write_output(files: Files, sources: Sequence[LogFile], output: Output) -> Path:
    folder = Path(output.folder)
    files.make_folder(folder)
    part, final = folder / f".{output.name}", folder / output.name
    fd = files.create(part, 0)
    try:
        _copy(files, fd, sources, output.pieces, output.names)
        files.sync(fd)
    except BaseException:
        files.unlink(part)
        raise
    finally:
        files.close(fd)
    files.link(part, final)
    files.unlink(part)
    files.sync_folder(folder)
    return final


def _copy(files: Files, fd: int, sources: Sequence[LogFile], pieces: Sequence[Piece], names: Names) -> None:
    nonce = secrets.randbits(64)
    files.write(fd, [fmt.encode_file_header(fmt.REWRITTEN_MAGIC, nonce, 0)], 0)
    at = fmt.FILE_BYTES
    rows: list[fmt.FooterRow] = []
    for piece in pieces:
        offsets: list[int] = []
        lengths: list[int] = []
        for data, sizes in _records(files, sources[piece.source], piece):
            files.write(fd, data, at)
            for size in sizes:
                offsets.append(at)
                at += size
            lengths += sizes
        last = rows[-1] if rows else None
        if last is not None and last.ledger == piece.ledger and last.first + len(last.offsets) == piece.first:
            rows[-1] = fmt.FooterRow(
                last.ledger, last.first, [*last.offsets, *offsets], [*last.lengths, *lengths]
            )
        else:
            rows.append(fmt.FooterRow(piece.ledger, piece.first, offsets, lengths))
    block = encode_names(names)
    if block:
        files.write(fd, [block], at)
    start = -(-(at + len(block)) // 8) * 8
    files.write(fd, [fmt.encode_footer(nonce, 0, rows, at, 0, start)], start)


def _records(files: Files, source: LogFile, piece: Piece) -> Iterable[tuple[list[memoryview], list[int]]]:
    """The piece's records, whole, checked, in groups as they are read."""
    places = source.index.places(piece.ledger, piece.first, piece.end - piece.first)
    if places is None or len(places[1]) != piece.end - piece.first:
        raise _DamagedSource(piece.source)
    _, offsets, lengths = places
    fd = files.open(source.path)
    try:
        i = 0
        while i < len(offsets):
            stop = span_end(offsets, lengths, i)
            base = offsets[i]
            view = memoryview(files.read(fd, offsets[stop - 1] + lengths[stop - 1] - base, base))
            group = []
            for j in range(i, stop):
                at = offsets[j] - base
                if check_entry(view, at, lengths[j], piece.ledger, piece.first + j) is None:
                    raise _DamagedSource(piece.source)
                group.append(view[at : at + lengths[j]])
            yield group, list(lengths[i:stop])
            i = stop
    finally:
        files.close(fd)
