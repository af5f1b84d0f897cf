"""How many messages brokers may send."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.consuming.core.permits import FIRST, Window


def test_it_starts_small_and_doubles_up_to_the_limit() -> None:
    window = Window()
    allowed = [window.refill(1000)]
    for _ in range(6):
        window.arrived(allowed[-1])
        window.taken(allowed[-1])
        allowed.append(window.refill(1000))
    assert allowed[0] == FIRST
    assert max(allowed) <= 1000
    assert allowed[-1] == 1000


def test_nothing_is_allowed_while_messages_wait_for_the_application() -> None:
    window = Window()
    window.arrived(window.refill(64))
    assert window.refill(64) == 0
    window.taken(31)
    assert window.refill(64) == 0
    window.taken(1)
    assert window.refill(64) == 32


def test_a_batch_larger_than_allowed_is_made_up_for() -> None:
    window = Window()
    assert window.refill(100) == FIRST
    window.arrived(5000)
    assert window.refill(100) == 0
    window.taken(5000)
    # The broker counts 5000 - 64 below zero.
    assert window.refill(100) == 5000 + 100 - FIRST


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=50), st.integers(1, 500))
def test_a_consumer_that_takes_everything_is_never_stuck(steps: list[tuple[int, int]], limit: int) -> None:
    window = Window()
    broker = window.refill(limit)
    queued = 0
    for arriving, taking in steps:
        if broker > 0:
            window.arrived(arriving)
            broker -= arriving
            queued += arriving
        taken = min(taking, queued)
        window.taken(taken)
        queued -= taken
        broker += window.refill(limit)
        assert broker + queued <= limit
    window.taken(queued)
    broker += window.refill(limit)
    assert broker > 0
