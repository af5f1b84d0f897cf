"""One line for whoever sends to a topic that nobody subscribes to: how long consumers that come later find messages."""

from __future__ import annotations

import json
from typing import Any, Final

from anabranch.cli.reach import Found
from anabranch.client.errors import AccessFailed
from anabranch.client.rest import NotAnswered, call, topic_path
from anabranch.client.security import NOBODY, Security

ANSWER_MAX_S: Final = 2.0
_UNITS: Final = ((24 * 60, "day"), (60, "hour"), (1, "minute"))


def unheard(found: Found, security: Security | None) -> str | None:
    """None where somebody subscribes, and where that cannot be found out. Asks the admin REST, and waits for it."""
    if not found.admin_url:
        return None
    kind = "persistent" if found.is_classic else "scalable"
    path = f"{found.admin_url.rstrip('/')}/admin/v2/{kind}/{topic_path(str(found.name)).partition('/')[2]}"
    if found.is_classic:
        subscriptions = _asked(f"{path}/subscriptions", security)
        retention = _asked(f"{path}/retention?applied=true", security) if subscriptions == [] else None
    else:
        subscriptions = (_asked(f"{path}/stats", security) or {}).get("subscriptions")
        namespace = f"{found.admin_url.rstrip('/')}/admin/v2/namespaces/{found.name.namespace}"
        retention = _asked(f"{namespace}/retention", security) if subscriptions == {} else None
    if subscriptions is None or len(subscriptions) > 0:
        return None
    return f"nobody subscribes to {found.name.local}: {told(retention)}"


def told(retention: Any) -> str:
    """What becomes of messages that nobody has asked for, by a retention policy as the REST has it; None: not known."""
    if not isinstance(retention, dict):
        return "who comes later finds its messages for as long as retention keeps them, and has to start at earliest"
    minutes, megabytes = retention.get("retentionTimeInMinutes", 0), retention.get("retentionSizeInMB", 0)
    if minutes == 0 or megabytes == 0:
        return "its retention keeps nothing, so messages are gone within minutes unless somebody subscribes before"
    within = "" if megabytes < 0 else f", the last {megabytes:,} MB of them"
    return f"who comes later finds its messages {span(minutes)}{within}, and has to start at earliest"


def span(minutes: int) -> str:
    """`for 7 days`."""
    if minutes < 0:
        return "for ever"
    size, unit = next((size, unit) for size, unit in _UNITS if minutes % size == 0)
    count = minutes // size
    return f"for {count:,} {unit}{'' if count == 1 else 's'}"


def _asked(url: str, security: Security | None) -> Any:
    """The answer; None if there is none, for whatever reason: it is only a hint that would be given."""
    try:
        answer = call("GET", url, security=security or NOBODY, timeout_s=ANSWER_MAX_S)
        return json.loads(answer.body) if answer.status == 200 else None
    except (NotAnswered, AccessFailed, ValueError):
        return None
