"""The store's time and the mark on disk that it does not pass."""

from __future__ import annotations

from anabranch.metadata.store_time import AHEAD_MS, MARK_AGAIN_MS, StoreTime


class Clock:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def test_time_follows_the_clock_forward_and_never_back() -> None:
    clock = Clock(1_000)
    time = StoreTime(clock, 0)
    assert time.now_ms() == 1_000
    clock.now_ms = 400
    assert time.now_ms() == 1_000
    clock.now_ms = 1_500
    assert time.now_ms() == 1_500


def test_time_after_a_crash_stands_at_the_mark_until_the_clock_has_caught_up() -> None:
    clock = Clock(1_000)
    time = StoreTime(clock, 9_000)
    assert time.shown_ms() == 9_000
    clock.now_ms = 9_001
    assert time.now_ms() == 9_001


def test_a_crash_puts_time_ahead_by_less_than_people_notice() -> None:
    """It was 15 s: after `kill -9` a topic's decisions were dated ahead of everybody's clock."""
    clock = Clock(1_000)
    time = StoreTime(clock, 0)
    mark = time.next_mark_ms(is_writing=True)
    assert mark is not None
    after = StoreTime(clock, mark)
    assert 0 < after.now_ms() - clock.now_ms <= 2_000


def test_no_time_after_the_mark_is_shown() -> None:
    clock = Clock(1_000)
    time = StoreTime(clock, 0)
    assert time.shown_ms() is None
    mark = time.next_mark_ms(is_writing=False)
    assert mark == 1_000 + AHEAD_MS
    time.mark_ms = mark
    clock.now_ms = mark
    assert time.shown_ms() == mark
    clock.now_ms = mark + 1
    assert time.shown_ms() is None


def test_a_write_takes_a_new_mark_along_and_a_read_does_only_if_it_must() -> None:
    clock = Clock(1_000)
    time = StoreTime(clock, 1_000)
    time.mark_ms = 1_000 + AHEAD_MS
    assert time.next_mark_ms(is_writing=True) is None
    clock.now_ms += MARK_AGAIN_MS
    time.now_ms()
    assert time.next_mark_ms(is_writing=False) is None
    assert time.next_mark_ms(is_writing=True) == clock.now_ms + AHEAD_MS
