"""Orders and notes between a supervisor and a process."""

from __future__ import annotations

import asyncio
import socket

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.supervisor.channel import Note, NoteLink, Orders, encode_orders, receive_orders
from anabranch.supervisor.core.processes import ProcessKind

ORDERS = Orders(
    kind=ProcessKind.BROKER,
    name="broker-1",
    brokers=3,
    config=BrokerConfig(token_secret_key="data:;base64,AAAA", super_user_roles=("admin",)),
    metadata_path="/somewhere/metadata.sock",
    index=1,
    shared=Addresses("pulsar://localhost:6650"),
    sockets={"pulsar": (7, 8)},
)


async def test_orders_arrive_as_they_were_sent_and_notes_after_them() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        # A note may be sent before the process has read its orders.
        ours.sendall(encode_orders(ORDERS) + b'{"is_stopping":true}\n{"session":"7"}\n')
        assert receive_orders(theirs) == ORDERS
        heard: asyncio.Queue[Note] = asyncio.Queue()
        link = NoteLink(theirs, heard.put_nowait, lambda: None)
        assert await heard.get() == Note(is_stopping=True)
        assert await heard.get() == Note(session="7")
        link.close()


async def test_notes_go_both_ways() -> None:
    ours, theirs = socket.socketpair()
    heard: asyncio.Queue[Note] = asyncio.Queue()
    one = NoteLink(ours, heard.put_nowait, lambda: None)
    other = NoteLink(theirs, heard.put_nowait, lambda: None)
    one.send(Note(ended_session="5"))
    assert await heard.get() == Note(ended_session="5")
    other.send(Note(is_serving=True))
    assert await heard.get() == Note(is_serving=True)
    one.close()
    other.close()


async def test_the_end_of_the_peer_is_heard() -> None:
    ours, theirs = socket.socketpair()
    ended = asyncio.Event()
    NoteLink(theirs, lambda _: None, ended.set)
    ours.close()
    await ended.wait()


async def test_a_note_to_a_process_that_is_gone_is_no_error() -> None:
    ours, theirs = socket.socketpair()
    ended = asyncio.Event()
    link = NoteLink(ours, lambda _: None, ended.set)
    theirs.close()
    link.send(Note(is_stopping=True))
    await ended.wait()
    link.send(Note(is_stopping=True))


def test_a_supervisor_that_is_gone_before_its_orders_are_read_is_an_end() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(encode_orders(ORDERS)[:100])
        ours.close()
        with pytest.raises(EOFError):
            receive_orders(theirs)
