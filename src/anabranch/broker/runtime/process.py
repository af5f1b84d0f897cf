"""How a broker's process runs: its event loop, its collector, its signals, its exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime import logs
from anabranch.broker.runtime.collecting import FullCollections, collect_in_steps
from anabranch.errors import AnabranchError

log = logging.getLogger(__name__)

# A finished sync must not wait long for a busy loop to release the interpreter: 5 ms, the default, would be most of a
# publish's latency.
SWITCH_INTERVAL_S: Final = 0.0001


def on_signals(stop: asyncio.Event) -> None:
    """The first SIGINT or SIGTERM requests a clean end, the second ends at once, which loses nothing acknowledged."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def asked(number: int) -> None:
        log.info("stopping", extra={"signal": signal.Signals(number).name})
        stop.set()
        for other in numbers:
            loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, asked, number)


def all_loaded() -> None:
    """Called when the process serves: the collector never scans what is there by now."""
    gc.freeze()


async def _collecting(work: Coroutine[Any, Any, None]) -> None:
    with FullCollections():
        await work


def run_to_end(work: Coroutine[Any, Any, None], config: BrokerConfig, *, process: str = "") -> int:
    """Runs the work of a broker's process; returns the exit code. An error that a person can act on is one line, which
    names the process if it is one of several."""
    import uvloop

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    collect_in_steps()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_collecting(work))
    except AnabranchError as error:
        logs.tell(config, logging.ERROR, f"{process}: {error}" if process else str(error))
        return 1
    return 0
