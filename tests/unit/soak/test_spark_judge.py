"""The judge of Spark's soak sees what is wrong with a table."""

from __future__ import annotations

from soak.spark.judge import KEYS, faults, key_of

INPUT = [key_of(number) for number in range(200)]
GOOD = [(key_of(number), number) for number in range(200)]


def test_the_input_itself_is_good_in_any_order_between_keys() -> None:
    assert faults(GOOD, INPUT) == []
    assert faults(sorted(GOOD, key=lambda row: (row[0], row[1])), INPUT) == []


def test_a_missing_row_is_told() -> None:
    assert faults(GOOD[:-1], INPUT) == ["1 are missing, such as [199]"]


def test_a_row_that_is_there_twice_is_told() -> None:
    assert faults([*GOOD, GOOD[7]], INPUT) == ["1 are there more than once, such as [7]"]


def test_a_key_out_of_order_is_told() -> None:
    rows = list(GOOD)
    rows[0], rows[KEYS] = rows[KEYS], rows[0]
    assert faults(rows, INPUT) == [f"key-0: 0 stands behind {KEYS}"]


def test_a_row_that_nobody_published_is_told() -> None:
    assert faults([*GOOD, ("key-0", 1000)], INPUT) == ["1000 with key key-0 was never published"]
    assert faults([*GOOD[:-1], ("key-0", 199)], INPUT) == ["199 with key key-0 was never published"]
