"""A hint for a user who sends to a topic without subscriptions: how long later consumers find the messages, and how."""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

from anabranch.cli.messages.resolve_topic import FoundTopic
from anabranch.client.errors import AccessFailed
from anabranch.client.security import NOBODY, Security
from anabranch.client.transport.rest import NotAnswered, call, topic_path
from anabranch.model.names import PUBLIC_DEFAULT

ANSWER_MAX_S: Final = 2.0
_UNITS: Final = ((24 * 60, "day"), (60, "hour"), (1, "minute"))


def unheard(found: FoundTopic, security: Security | None, reach: str = "") -> str | None:
    """The line, and the command that reads the messages, with the options `reach`; None if there is a subscription, and
    if that cannot be found out. Waits for the admin REST."""
    if not found.admin_url:
        return None
    kind = "persistent" if found.is_classic else "scalable"
    path = f"{found.admin_url.rstrip('/')}/admin/v2/{kind}/{topic_path(str(found.name)).partition('/')[2]}"
    subscriptions = _asked(f"{path}/subscriptions", security)
    if subscriptions != []:
        return None
    kept = told(_asked(f"{path}/retention?applied=true", security))
    name = (
        str(found.name)
        if found.name.namespace != PUBLIC_DEFAULT or not found.is_classic
        else found.name.local
    )
    command = f"anabranch consume {shlex.quote(name)} -s NAME --start earliest{reach}"
    return f"{found.name.local} has no subscription: {kept}\n{command}"


def told(retention: Any) -> str:
    """What happens to messages without a subscription. `retention` is the policy as REST has it; None if unknown."""
    if not isinstance(retention, dict):
        return "a later subscription finds its messages for as long as retention keeps them, if it starts at earliest:"
    minutes, megabytes = retention.get("retentionTimeInMinutes", 0), retention.get("retentionSizeInMB", 0)
    if minutes == 0 or megabytes == 0:
        return "its retention keeps nothing: messages are deleted within minutes unless a subscription is there first:"
    within = "" if megabytes < 0 else f", the last {megabytes:,} MB of them"
    return f"a later subscription finds its messages {span(minutes)}{within}, and has to start at earliest:"


def span(minutes: int) -> str:
    """`for 7 days`."""
    if minutes < 0:
        return "for ever"
    size, unit = next((size, unit) for size, unit in _UNITS if minutes % size == 0)
    count = minutes // size
    return f"for {count:,} {unit}{'' if count == 1 else 's'}"


def _asked(url: str, security: Security | None) -> Any:
    """The answer; None if there is none, for any reason: only a hint would be lost."""
    try:
        answer = call("GET", url, security=security or NOBODY, timeout_s=ANSWER_MAX_S)
        return json.loads(answer.body) if answer.status == 200 else None
    except (NotAnswered, AccessFailed, ValueError):
        return None
