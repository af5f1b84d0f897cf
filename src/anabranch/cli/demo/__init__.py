"""`anabranch demo`: a broker at work, told step by step, every claim checked."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from anabranch.cli.options import UsageError


def run(arguments: argparse.Namespace) -> int:
    if arguments.messages < 100:
        raise UsageError("--messages must be at least 100, or there would be little to see")
    try:
        import pulsar  # noqa: F401  # Only to know whether it is there.
    except ImportError:
        raise UsageError("the demo needs Pulsar's own client: pip install pulsar-client") from None
    from anabranch.cli.demo.account import Account
    from anabranch.cli.demo.story import Story

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Both signals end the demo the same way: the broker is stopped and its folder removed on the way out.
    signal.signal(signal.SIGTERM, interrupt)
    account = Account()
    try:
        Story(account, arguments.messages).tell()
    except KeyboardInterrupt:
        print("anabranch: interrupted; the broker was stopped and its folder removed", file=sys.stderr)
        return 130
    return account.conclude()
