"""The codec gives back what it was given and notices when bytes were changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.storage.core import format as fmt

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
KINDS = st.sampled_from([fmt.ENTRY, fmt.DELTA, fmt.SNAPSHOT, fmt.CHECKPOINT])


@given(
    ledger=U64, number=U64, messages=U32, kind=KINDS, data=st.binary(max_size=200), pad=st.binary(max_size=20)
)
def test_a_record_comes_back(
    ledger: int, number: int, messages: int, kind: int, data: bytes, pad: bytes
) -> None:
    encoded = pad + fmt.encode_record(ledger, number, messages, kind, data) + pad
    record = fmt.read_record(memoryview(encoded), len(pad), len(encoded))
    size = fmt.RECORD_BYTES + len(data)
    assert record == (len(pad), size, ledger, number, messages, kind, True)


@given(data=st.binary(max_size=50), at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_any_changed_byte_of_a_record_is_noticed(data: bytes, at: int, flip: int) -> None:
    encoded = bytearray(fmt.encode_record(1, 2, 3, fmt.ENTRY, data))
    encoded[at % len(encoded)] ^= flip
    record = fmt.read_record(memoryview(bytes(encoded)), 0, len(encoded))
    assert record is None or not record.is_good


@given(
    number=U64,
    flags=U32,
    length=st.integers(0, 2**40),
    confirmed=st.tuples(U32, U64),
    rows=st.lists(st.tuples(U64, U64, U32, U32), max_size=5),
)
def test_a_commit_header_comes_back(
    number: int, flags: int, length: int, confirmed: tuple[int, int], rows: list[tuple[int, int, int, int]]
) -> None:
    header = fmt.CommitHeader(number, flags, length, len(rows), *confirmed)
    view = memoryview(fmt.encode_commit_header(9, 4, header, rows))
    assert len(view) == header.total - length
    assert fmt.decode_commit_header(view, 0, 9, 4) == header
    assert fmt.decode_run_table(view, 0, len(rows)) == rows
    assert bytes(view).startswith(fmt.commit_pattern(9))
    # Another log's, another file's.
    assert fmt.decode_commit_header(view, 0, 8, 4) is None
    assert fmt.decode_commit_header(view, 0, 9, 5) is None


@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_any_changed_byte_of_a_commit_header_is_noticed(at: int, flip: int) -> None:
    header = fmt.CommitHeader(3, 0, 100, 2, 1, 64)
    encoded = bytearray(fmt.encode_commit_header(9, 4, header, [(1, 2, 3, 4), (5, 6, 7, 8)]))
    at %= len(encoded)
    encoded[at] ^= flip
    is_padding = fmt.COMMIT_BYTES - 4 <= at < fmt.COMMIT_BYTES
    assert (fmt.decode_commit_header(memoryview(bytes(encoded)), 0, 9, 4) is None) != is_padding


@given(
    ends=st.tuples(U64, U64, U64),
    namespace=st.text(max_size=10),
    snapshot=st.none() | st.binary(max_size=20),
    deltas=st.lists(st.binary(max_size=20), max_size=4).map(tuple),
)
def test_a_checkpoint_part_comes_back(
    ends: tuple[int, int, int], namespace: str, snapshot: bytes | None, deltas: tuple[bytes, ...]
) -> None:
    part = fmt.CheckpointPart(*ends, namespace, snapshot, deltas)
    assert fmt.decode_part(memoryview(fmt.encode_part(part))) == part
    counted = part._replace(messages=ends[0])
    assert fmt.decode_part(memoryview(fmt.encode_part(counted))) == counted
    # A release that did not count messages reads what is before them.
    assert fmt.encode_part(counted)[:-8] == fmt.encode_part(part)


@given(
    rows=st.dictionaries(
        st.integers(0, 50),
        st.tuples(st.integers(0, 1000), st.lists(st.tuples(U32, U32), min_size=1, max_size=6)),
    ),
    pad=st.integers(0, 5),
)
def test_a_footer_finds_every_entry(rows: dict[int, tuple[int, list[tuple[int, int]]]], pad: int) -> None:
    given_rows = [
        fmt.FooterRow(ledger, first, [o for o, _ in places], [n for _, n in places])
        for ledger, (first, places) in rows.items()
    ]
    at = pad * 8
    encoded = fmt.encode_footer(9, 4, given_rows, 123, 45, at)
    assert len(encoded) == fmt.footer_size(given_rows)
    trailer = fmt.decode_trailer(encoded[-fmt.TRAILER_BYTES :])
    assert trailer is not None
    assert (trailer.nonce, trailer.file, trailer.data_end, trailer.checkpoint_start) == (9, 4, 123, 45)
    footer = fmt.Footer(memoryview(encoded)[: -fmt.TRAILER_BYTES], trailer.rows)
    for row in given_rows:
        (index,) = footer.rows_of(row.ledger)
        count = len(row.offsets)
        assert footer.row(index) == (row.ledger, row.first, count, sum(row.lengths))
        offsets, lengths = footer.places(index, 0, count)
        assert (list(offsets), list(lengths)) == (row.offsets, row.lengths)
    assert list(footer.rows_of(51)) == []


def test_an_unfinished_file_has_no_trailer() -> None:
    assert fmt.decode_trailer(bytes(fmt.TRAILER_BYTES)) is None
    assert fmt.decode_trailer(b"") is None
