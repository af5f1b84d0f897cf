"""The share of one core that the loop's thread uses."""

from __future__ import annotations

from anabranch.broker.observe.loop_share import LoopShare


def test_the_share_is_that_of_the_last_interval() -> None:
    at = {"clock": 100.0, "cpu": 3.0}
    share = LoopShare(lambda: at["clock"], lambda: at["cpu"])
    assert share.last == 0.0
    at |= {"clock": 110.0, "cpu": 8.0}
    share.turn()
    assert share.last == 0.5
    at |= {"clock": 120.0, "cpu": 8.0}
    share.turn()
    assert share.last == 0.0
    at |= {"clock": 120.0, "cpu": 9.0}
    share.turn()
    assert share.last == 0.0
