"""Where entries lie, while files come and go under those who look."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.position import Incarnation
from anabranch.storage.on_disk.catalog import Catalog, LogFile, OpenIndex, Places


def file_with(rows: dict[int, tuple[int, int]], name: str = "00000001.wal") -> LogFile:
    """A file with entries [first, end) of each ledger, ten bytes each."""
    file = LogFile(Path(name), 1, Incarnation("i"))
    assert isinstance(file.index, OpenIndex)
    for ledger, (first, end) in rows.items():
        count = end - first
        file.index.add(ledger, first, 100, [10 * i for i in range(count)], array("I", [10] * count))
    return file


def test_a_run_that_does_not_follow_on_starts_a_row_of_its_own() -> None:
    index = OpenIndex()
    assert index.add(1, 0, 100, [0, 10], array("I", [10, 10]))
    assert not index.add(1, 2, 200, [0], array("I", [10]))
    assert not index.add(1, 5, 300, [0, 10], array("I", [10, 10]))
    assert index.places(1, 1, 9) == (1, array("I", [110, 200]), array("I", [10, 10]))
    assert index.places(1, 3, 9) is None
    assert index.next_after(1, 3) == 5
    assert [row[1:3] for row in index.rows()] == [(0, 3), (5, 2)]


@given(st.permutations(range(6)))
def test_entries_are_found_whatever_order_files_come_in(order: list[int]) -> None:
    catalog = Catalog()
    files = [file_with({7: (10 * i, 10 * i + 10)}) for i in range(6)]
    for i in order:
        catalog.add_indexed(files[i])
    for entry in range(60):
        located = catalog.locate(7, entry, 100)
        assert located is not None
        assert located[0] is files[entry // 10]
    assert catalog.locate(7, 60, 1) is None
    catalog.remove([files[2]])
    assert catalog.locate(7, 25, 1) is None
    assert catalog.next_after(7, 25) == 30


class ExchangedWhileLooking(OpenIndex):
    """Its file is replaced at the very moment somebody asks where an entry lies."""

    def __init__(self, exchange: Callable[[], None]) -> None:
        super().__init__()
        self._exchange = exchange

    def places(self, ledger: int, entry: int, count_max: int) -> Places | None:
        self._exchange()
        return None


def test_a_lookup_overtaken_by_an_exchange_looks_again() -> None:
    catalog = Catalog()
    old, new = file_with({7: (0, 10)}), file_with({7: (0, 10)}, "new")
    catalog.add_indexed(old)

    def exchange() -> None:
        catalog.add_indexed(new)
        catalog.remove([old])

    old.index = ExchangedWhileLooking(exchange)
    located = catalog.locate(7, 3, 1)
    assert located is not None
    assert located[0] is new
