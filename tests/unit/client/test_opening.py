"""What `client.producer(…)` says of itself before it is opened."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import anabranch


async def test_a_producer_that_was_not_opened_says_how_it_is() -> None:
    client = anabranch.connect("pulsar://127.0.0.1:1")
    producer: Any = client.producer("topic://public/default/orders")
    with pytest.raises(
        AttributeError, match="'send' of a part that is not open: open it first, with `await`"
    ):
        producer.send(b"x")
    assert copy.copy(producer) is not producer
    await client.close()
