"""Where `consume` begins, as it is typed: an end of the topic, a time, a message; and subscriptions made there."""

from __future__ import annotations

import argparse
import re
from datetime import datetime
from typing import Any, Final, Literal, cast
from urllib.parse import quote

from anabranch.cli.admin import rest
from anabranch.cli.messages.last_messages import Opened, from_message
from anabranch.cli.messages.resolve_topic import FoundTopic
from anabranch.cli.parsing.access import security_of
from anabranch.cli.parsing.options import UsageError
from anabranch.client import MessageId
from anabranch.client.consuming.core.checkpoint import Start
from anabranch.client.transport.rest import topic_path
from anabranch.model.segments import SegmentId

Place = Start | MessageId

# As `consume --output json` prints ids: segment, ledger, entry, and the place in a batch or -1.
_ID: Final = re.compile(r"\(?(\d+):(\d+):(\d+)(?::(-1|\d+))?\)?")
_EARLIEST: Final = {"ledgerId": -1, "entryId": -1}


def start_of(text: str) -> Place:
    """earliest, latest, the id of a message, or a time, which is local unless it names its zone."""
    if text in ("earliest", "latest"):
        return cast(Literal["earliest", "latest"], text)
    if found := _ID.fullmatch(text):
        index = int(found[4]) if found[4] else -1
        return MessageId(int(found[1]), int(found[2]), int(found[3]), index)
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(
            f"--start {text}: earliest, latest, a time such as 2026-01-31T15:00, or an id as `--output json` prints "
            "it: SEGMENT:LEDGER:ENTRY:INDEX"
        ) from None


async def begin_at(message: MessageId, found: FoundTopic, opened: Opened) -> bytes:
    """The checkpoint at which that message is the next of its segment."""
    layout = found.layout
    assert layout is not None
    if message.segment not in layout.segments:
        raise UsageError(f"--start {message}: {found.name} has no segment {message.segment} (any more)")
    at = (message.ledger, message.entry, max(0, message.index))
    begin = await from_message(layout, SegmentId(message.segment), at, opened)
    if begin is None:
        raise UsageError(f"--start {message}: segment {message.segment} has no message there, nor behind it")
    return begin


def subscribed_at(arguments: argparse.Namespace, found: FoundTopic | None, start: Place) -> Start:
    """Makes the subscription at that time, unless it exists: it continues where it was then. Brokers do that over their
    REST; clients themselves begin at one end of the topic."""
    if found is None:
        raise UsageError(f"--start {arguments.start}: give earliest or latest with --namespace")
    if not isinstance(start, datetime):
        raise UsageError(
            f"--start {arguments.start}: an id is for reading without a subscription (--type checkpoint); give a "
            "time, earliest or latest"
        )
    if not found.admin_url:
        raise UsageError(
            f"--start {arguments.start}: the broker names no admin REST that your credentials may be sent to; give "
            "earliest or latest"
        )
    rest.ask_as(security_of(arguments))
    kind = "persistent" if found.is_classic else "scalable"
    base = f"/admin/v2/{kind}/{topic_path(str(found.name)).partition('/')[2]}"
    name = quote(arguments.subscription, safe="")
    time_ms = max(0, round(start.timestamp() * 1000))

    def ask(method: str, path: str, body: Any = None) -> Any:
        return rest.call(found.admin_url, method, base + path, body)

    if found.is_classic:
        if arguments.subscription not in ask("GET", "/subscriptions"):
            ask("PUT", f"/subscription/{name}", _EARLIEST)
            ask("POST", f"/subscription/{name}/resetcursor/{time_ms}")
    elif arguments.subscription not in ask("GET", "/stats")["subscriptions"]:
        ask("PUT", f"/subscriptions/{name}?type={arguments.kind.upper()}")
        ask("POST", f"/subscriptions/{name}/seek?timestamp={time_ms}")
    return "earliest"
