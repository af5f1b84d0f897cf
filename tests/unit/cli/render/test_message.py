"""Rows of messages."""

from __future__ import annotations

from typing import cast

import pytest

from anabranch.cli.render.message import Table
from anabranch.client import Message


class Sent:
    """As much of a message as a row shows."""

    id, key, properties, schema_version, payload = "1:2", "k", {"n": "1"}, b"", b"tea"

    def __init__(self, publish_time_ms: int) -> None:
        self.publish_time_ms = publish_time_ms


@pytest.mark.parametrize("time_ms", [2**64 - 1, 2**53, 10**15])
def test_a_time_in_no_known_year_is_shown_as_it_was_sent(time_ms: int) -> None:
    rows = Table(None)([cast(Message, Sent(time_ms)), cast(Message, Sent(0))]).decode().splitlines()
    assert rows[1].split() == [str(time_ms), "ms", "1:2", "k", "n=1", "tea"]
    assert rows[2].split()[-4:] == ["1:2", "k", "n=1", "tea"]
