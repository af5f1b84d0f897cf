"""`anabranch demo`: shows brokers at work, step by step, and checks every claim.

The main job is a clickstream on a topic that splits and merges, with Spark reading it; `--durability` is a shorter
story with Pulsar's own client. Both end with the list of checks, and with an exit code that says whether all held.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from anabranch.cli.parsing.options import UsageError

if TYPE_CHECKING:
    from anabranch.cli.demo.account import Account
    from anabranch.cli.demo.reading import DemoReading

# The options of the command line that the demo's process needs.
OPTIONS: Final = (
    *("brokers", "durability", "events", "keep", "messages", "no_browser"),
    *("no_kill", "no_spark", "report", "seconds"),
)
EVENTS_MIN = 1000
SECONDS_MIN = 5.0
BROKERS = 1
BROKERS_MAX = 8  # Each is a process, and has to start before anything is to be seen.


def run(arguments: argparse.Namespace) -> int:
    """Invalid options are refused at once; then the demo runs as a process that this one supervises."""
    from anabranch.cli.demo.supervised import supervise

    _check(arguments)
    return supervise({name: getattr(arguments, name) for name in OPTIONS})


def tell(arguments: argparse.Namespace, stays: Callable[[int], object]) -> int:
    """The demo itself, in the process that was made for it. With `--keep` it calls `stays` at its end, and waits."""
    from anabranch.cli.demo.account import Account

    account = Account()
    if not arguments.durability:
        return _main_job(account, arguments, stays)
    from anabranch.cli.demo.story import Story

    Story(account, arguments.messages).tell()
    return account.conclude()


def _check(arguments: argparse.Namespace) -> None:
    if arguments.brokers is not None and not 1 <= arguments.brokers <= BROKERS_MAX:
        raise UsageError(f"--brokers must be from 1 to {BROKERS_MAX}")
    if arguments.durability:
        if (arguments.brokers or 1) > 1:
            raise UsageError("--durability is the story of one broker: leave --brokers out")
        if arguments.messages < 100:
            raise UsageError("--messages must be at least 100, or there would be little to see")
        try:
            import pulsar  # noqa: F401  # Only to know whether it is there.
        except ImportError:
            raise UsageError("the demo needs Pulsar's own client: pip install pulsar-client") from None
        return
    absent = [name for name in ("numba", "numpy", "pyarrow") if importlib.util.find_spec(name) is None]
    if absent:
        raise UsageError(f"the demo needs {', '.join(absent)}: pip install 'anabranch[spark]'")
    if arguments.events < EVENTS_MIN:
        raise UsageError(f"--events must be at least {EVENTS_MIN:,}, or there would be little to see")
    if not arguments.seconds >= SECONDS_MIN:
        raise UsageError(
            f"--seconds must be at least {SECONDS_MIN:.0f}: a topic needs time to split and merge"
        )
    # The path is resolved now, and not in a minute, when the report is written.
    folder = Path(arguments.report).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(
            f"--report {arguments.report}: nothing can be written to {there}; choose another folder"
        )


def _main_job(account: Account, arguments: argparse.Namespace, stays: Callable[[int], object]) -> int:
    from anabranch.cli.demo.job import MainJob, Wish

    wish = Wish(
        arguments.events,
        arguments.seconds,
        Path(arguments.report),
        BROKERS if arguments.brokers is None else arguments.brokers,
        is_kept=arguments.keep,
        # The page's history is lost with the broker: a user of --keep wants to see it.
        is_killing=not arguments.no_kill and not arguments.keep,
        opens_browser=not arguments.no_browser and _has_screen(),
        stays=stays,
    )
    return MainJob(account, wish, choose_reading(account, is_spark=not arguments.no_spark)).run()


def choose_reading(account: Account, *, is_spark: bool) -> DemoReading:
    """Spark if it can run; otherwise the substitute, with a sentence about the reason."""
    from anabranch.cli.demo.plain_reading import PlainReading
    from anabranch.cli.demo.spark_reading import SparkReading
    from anabranch.pipelines.session import missing

    if not is_spark:
        return PlainReading()
    if (why := missing()) is None:
        return SparkReading()
    account.say(f"Without Spark: {why}.")
    account.say("The demo uses Anabranch's own consumer instead; sessions are left out.")
    return PlainReading()


def _has_screen() -> bool:
    """Whether there is a screen that can show a page."""
    has_display = sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return sys.stdout.isatty() and has_display
