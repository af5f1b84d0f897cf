"""Requests of one client that have to wait: each is a task, its failure is answered, and a lost connection ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from anabranch.broker.connection.reading import ReadGate
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

# The most requests under way on one connection. Reading stops at `reading.REQUESTS_HIGH` of them; the requests of the
# last read are still started, up to this number.
REQUESTS_MAX: Final = 20_000


class RequestLink(Protocol):
    """The connection that a request came on."""

    @property
    def address(self) -> str: ...

    def send(self, command: pb.BaseCommand) -> None: ...

    def send_error(self, request_id: int, error: BaseException) -> None: ...


class RequestTasks:
    """Holds no reference to its connection: such a cycle would be garbage that only the collector finds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, gate: ReadGate) -> None:
        self._loop = loop
        self._gate = gate
        self._tasks: dict[asyncio.Task[None], None] = {}  # In the order of the requests.

    def start(self, link: RequestLink, request_id: int, work: Coroutine[Any, Any, None]) -> bool:
        """Runs the work. Answers with an error and returns False if too many requests wait already."""
        if len(self._tasks) >= REQUESTS_MAX:
            work.close()
            error = pb.BaseCommand(type=pb.BaseCommand.ERROR)
            error.error.request_id = request_id
            error.error.error = pb.TooManyRequests
            error.error.message = f"more than {REQUESTS_MAX} requests are waiting on this connection"
            link.send(error)
            return False
        # Held in `_tasks` and cancelled by `cancel`.
        task = self._loop.create_task(_run(link, request_id, work))
        self._tasks[task] = None
        task.add_done_callback(self._done)
        # A connection that is lost at once cancels the task before it has begun; the coroutine is then closed here.
        task.add_done_callback(lambda _: work.close())
        self._gate.requests(len(self._tasks))
        return True

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._gate.requests(len(self._tasks))


async def _run(link: RequestLink, request_id: int, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except AnabranchError as error:
        client = {"client": link.address}
        log.info("request %s from %s refused: %s", request_id, link.address, error, extra=client)
        link.send_error(request_id, error)
    except Exception as error:
        log.exception("request %s from %s failed", request_id, link.address)
        link.send_error(request_id, error)
