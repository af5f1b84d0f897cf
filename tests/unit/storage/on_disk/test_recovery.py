"""Torn tails are cut, damage is kept and reported: decided from bytes alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.position import LedgerId
from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk.recovery import (
    PIECE_BYTES,
    Damage,
    FileStretch,
    Recovered,
    fold,
    scan_headers,
)

NONCE = 77
L = LedgerId(5)


def entry(number: int) -> bytes:
    return fmt.encode_record(L, number, 1, fmt.ENTRY, b"entry %d" % number)


def delta(number: int) -> bytes:
    return fmt.encode_record(L, number, 0, fmt.DELTA, b"d%d;" % number)


def commit(number: int, records: list[bytes], first: int, entries: int, confirmed: tuple[int, int]) -> bytes:
    body = b"".join(records)
    runs = [(L, first, entries, len(body))] if records else []
    head = fmt.CommitHeader(number, 0, len(body), len(runs), *confirmed)
    return fmt.encode_commit_header(NONCE, 1, head, runs) + body


class Log:
    """A file of commits with one entry and one delta each. `batch` commits go out together before a sync."""

    def __init__(self, commits: int, batch: int = 1) -> None:
        self.data = bytearray(fmt.encode_file_header(fmt.FILE_MAGIC, NONCE, 1))
        self.starts: list[int] = []
        synced = (0, 0)
        for i in range(commits):
            if i % batch == 0 and i:
                synced = (1, len(self.data))
            self.starts.append(len(self.data))
            self.data += commit(i + 1, [entry(i), delta(i)], i, 1, synced)
        self.starts.append(len(self.data))
        self.data += bytes(1000)

    def spoil(self, at: int) -> None:
        self.data[at] ^= 0x55

    def recover(self) -> Recovered:
        view = memoryview(bytes(self.data))
        return fold([FileStretch(1, view, fmt.FILE_BYTES, is_whole=True)], NONCE, is_from_beginning=True)


def ends(found: Recovered) -> tuple[int, int]:
    ledger = found.ledgers[L]
    return ledger.entries_end, len(ledger.deltas)


def test_a_clean_log_is_read_to_its_end() -> None:
    log = Log(5)
    found = log.recover()
    assert ends(found) == (5, 5)
    assert found.damage == []
    assert found.end == (1, log.starts[5])


def test_an_empty_log_has_no_ledgers() -> None:
    assert Log(0).recover().ledgers == {}


def test_a_bad_last_commit_is_a_torn_tail_and_is_cut() -> None:
    log = Log(5)
    log.spoil(log.starts[4] + fmt.COMMIT_BYTES + fmt.RUN_BYTES + 40)
    found = log.recover()
    assert ends(found) == (4, 4)
    assert found.damage == []
    assert found.end == (1, log.starts[4])


def test_a_commit_without_a_header_before_good_ones_of_the_same_write_is_a_torn_tail() -> None:
    log = Log(6, batch=3)
    log.spoil(log.starts[3])
    found = log.recover()
    assert ends(found) == (3, 3)
    assert found.damage == []


def test_a_torn_first_commit_makes_the_log_empty() -> None:
    log = Log(3, batch=3)
    log.spoil(log.starts[0])
    assert log.recover().ledgers == {}


def test_a_bad_record_below_the_confirmed_end_is_damage_and_the_rest_is_kept() -> None:
    log = Log(5)
    bad = log.starts[2] + fmt.COMMIT_BYTES + fmt.RUN_BYTES
    log.spoil(bad + fmt.RECORD_BYTES)
    found = log.recover()
    assert found.damage == [Damage(1, bad, L)]
    assert found.ledgers[L].entries_end == 5
    # Its place is still known, so that whoever reads it can be told where the damage lies.
    assert found.indexes[1].places(L, 2, 1) is not None


def test_a_commit_that_cannot_be_recognised_is_damage_where_it_began() -> None:
    log = Log(5)
    log.spoil(log.starts[2])
    found = log.recover()
    assert found.damage == [Damage(1, log.starts[2], None)]
    assert found.ledgers[L].entries_end == 5
    assert found.indexes[1].places(L, 2, 1) is None
    assert found.indexes[1].next_after(L, 2) == 3


def test_state_behind_a_lost_record_waits_for_a_full_state() -> None:
    log = Log(5)
    log.spoil(log.starts[2])
    assert log.recover().ledgers[L].deltas == [b"d0;", b"d1;"]


def test_an_idle_commit_makes_the_last_real_one_damage_rather_than_a_torn_tail() -> None:
    log = Log(5)
    del log.data[log.starts[5] :]
    log.data += commit(6, [], 0, 0, (1, log.starts[5])) + bytes(100)
    log.spoil(log.starts[4] + fmt.COMMIT_BYTES + fmt.RUN_BYTES + fmt.RECORD_BYTES)
    found = log.recover()
    assert found.ledgers[L].entries_end == 5
    assert [one.ledger for one in found.damage] == [L]


@given(commits=st.integers(1, 12), batch=st.integers(1, 4), where=st.floats(0, 1, exclude_max=True))
def test_one_spoiled_byte_never_hides_what_was_confirmed(commits: int, batch: int, where: float) -> None:
    log = Log(commits, batch)
    at = fmt.FILE_BYTES + int(where * (log.starts[-1] - fmt.FILE_BYTES))
    log.spoil(at)
    found = log.recover()
    confirmed = (commits - 1) // batch * batch
    ledger = found.ledgers.get(L)
    end = ledger.entries_end if ledger else 0
    assert confirmed <= end <= commits
    if end > confirmed or not found.damage:
        # Nothing was lost without a word: all entries up to the end are there.
        missing = [i for i in range(end) if found.indexes[1].places(L, i, 1) is None]
        assert not missing or found.damage


@given(commits=st.integers(1, 8), cut=st.floats(0, 1))
def test_a_log_cut_off_anywhere_is_a_prefix(commits: int, cut: float) -> None:
    log = Log(commits)
    at = fmt.FILE_BYTES + int(cut * (log.starts[-1] - fmt.FILE_BYTES))
    del log.data[at:]
    found = log.recover()
    whole = sum(start <= at for start in log.starts[1:])
    assert (ends(found) if found.ledgers else (0, 0)) == (whole, whole)
    assert found.damage == []


def test_a_commit_is_found_wherever_the_search_for_it_is_cut() -> None:
    log = Log(2)
    first, second = log.starts[0], log.starts[1]
    commit_two = bytes(log.data[second : log.starts[2]])
    for gap in (0, 1, 12, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 5):
        data = bytes(log.data[:first]) + b"\xff" * 50 + bytes(gap) + commit_two + bytes(1000)
        stretch = FileStretch(1, memoryview(data), first, is_whole=True)
        assert [at for at, _ in scan_headers(stretch, NONCE, is_thorough=True)] == [first + 50 + gap]


def test_a_quick_look_ends_where_nothing_was_written_yet() -> None:
    log = Log(3)
    log.data[log.starts[1] : log.starts[2]] = bytes(log.starts[2] - log.starts[1])
    stretch = FileStretch(1, memoryview(bytes(log.data)), log.starts[0], is_whole=True)
    assert [at for at, _ in scan_headers(stretch, NONCE, is_thorough=False)] == log.starts[:1]
    assert [at for at, _ in scan_headers(stretch, NONCE, is_thorough=True)] == [log.starts[0], log.starts[2]]
