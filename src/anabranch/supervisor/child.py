"""A process of a cluster, as its supervisor starts it: the metadata, or one broker.

It serves until the supervisor asks it to stop, and ends at once when the supervisor is gone, whatever it is doing then:
what was acknowledged is on disk. A broker also stops at SIGTERM. The metadata does not once it serves: SIGTERM may come
to every process at once, and the brokers need their metadata to close.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from anabranch.broker.runtime import logs
from anabranch.broker.runtime.process import all_loaded, on_signals, run_to_end
from anabranch.supervisor.channel import Note, NoteLink, Orders, receive_orders
from anabranch.supervisor.core.processes import ProcessKind

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG: Final = 1
ORPHANED: Final = 1


def main(arguments: list[str]) -> int:
    """Takes the number of the channel's descriptor; what stands before it is for people who list processes."""
    channel = socket.socket(fileno=int(arguments[-1]))
    _die_with_parent()
    try:
        orders = receive_orders(channel)
    except (EOFError, OSError):
        return ORPHANED
    logs.configure(orders.config, process=orders.name)
    serve = _serve_metadata if orders.kind is ProcessKind.METADATA else _serve_broker
    return run_to_end(serve(orders, channel), orders.config, process=orders.name)


def _die_with_parent() -> None:
    """Where the system can, it kills this process with its parent: also while it is paused, or busy for long."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _orphaned() -> None:
    os._exit(ORPHANED)


async def _serve_metadata(orders: Orders, channel: socket.socket) -> None:
    from anabranch.broker.runtime import data_folder
    from anabranch.broker.stores import opened_metadata
    from anabranch.metadata.served import MetadataServer

    stop = asyncio.Event()
    data = Path(orders.config.data_dir)
    if orders.is_first:
        # No process of an earlier cluster is left: its sessions end here, and the log is checked to be the right one.
        async with opened_metadata(data):
            pass
    server = await MetadataServer.start(data / data_folder.METADATA, Path(orders.metadata_path))

    def heard(note: Note) -> None:
        if note.ended_session:
            server.end(note.ended_session, "its process has ended")
        if note.is_stopping:
            stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    link = NoteLink(channel, heard, _orphaned)
    link.send(Note(is_serving=True))
    try:
        await stop.wait()
        log.info("stopping")
    finally:
        await server.stop()


async def _serve_broker(orders: Orders, channel: socket.socket) -> None:
    from anabranch.broker.runtime.listening import ServedSockets
    from anabranch.broker.server import ClusterPlace, serve
    from anabranch.broker.stores import shared_budgets, shared_stores

    stop = asyncio.Event()
    on_signals(stop)
    place = ClusterPlace(orders.index, orders.shared, orders.config.brokers_one_port, orders.brokers)

    def heard(note: Note) -> None:
        if note.is_stopping:
            place.all_stop.set()
            stop.set()

    def serves(_: object) -> None:
        all_loaded()
        link.send(Note(is_serving=True))

    link = NoteLink(channel, heard, _orphaned)
    with contextlib.ExitStack() as stack:

        def inherited(scheme: str) -> tuple[socket.socket, ...]:
            numbers = orders.sockets.get(scheme, ())
            return tuple(stack.enter_context(socket.socket(fileno=number)) for number in numbers)

        sockets = ServedSockets(
            inherited("pulsar"), inherited("pulsar+ssl"), inherited("http"), inherited("https")
        )
        config = shared_budgets(orders.config, orders.brokers)
        await serve(
            config,
            shared_stores(
                config,
                orders.brokers,
                Path(orders.metadata_path),
                lambda session: link.send(Note(session=session)),
            ),
            sockets,
            stop,
            serves,
            place,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
