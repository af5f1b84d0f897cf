"""The options of the Spark source: what may be given, and what each means. Pure.

Names are found whatever their case, as Spark's own are. A mistake is told with the option's name and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from anabranch.client.checkpoint import Begin, Start, begin_of
from anabranch.client.options import check_service_url
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.spark.plan import UNLIMITED, Limit, Ordering
from anabranch.spark.task import ReadMode

WHERE: Final = (
    "'earliest', 'latest', a time with a zone such as 2026-05-01T12:00:00Z, or the text of a checkpoint"
)
# The columns of the source's rows, each with its type as Spark writes it.
COLUMNS: Final[Mapping[str, str]] = {
    "key": "binary",
    "value": "binary",
    "properties": "map<string, string>",
    "topic": "string",
    "segment": "bigint",
    "message_id": "struct<ledger: bigint, entry: bigint, index: int>",
    "publish_time": "timestamp",
    "event_time": "timestamp",
    "position": "struct<segment: bigint, ledger: bigint, entry: bigint, index: int>",
}


class BadOption(AnabranchError, ValueError):
    """An option of the source is missing, unknown or has a value that is not allowed."""


@dataclass(frozen=True, slots=True)
class Options:
    service_url: str
    topic: str
    start: Begin | None = None  # None: the earliest for a batch, the latest for a stream.
    end: Begin | None = None  # None: the latest. For batches only.
    ordering: Ordering = "key"
    limit: Limit = UNLIMITED
    subscription: str | None = None
    fail_on_data_loss: bool = True
    timeout_s: float = 60.0
    read_mode: ReadMode = "auto"
    admin_url: str | None = None  # None: what the brokers say of themselves.
    columns: tuple[str, ...] | None = None  # None: all.


# -- single values


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(" or ".join(map(repr, allowed)))
        return text.lower()

    return read


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError("a whole number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ValueError("a number of seconds above 0")
    return value


def _service_url(text: str) -> str:
    try:
        check_service_url(text)
    except AnabranchError as error:
        raise ValueError(f"pulsar://host:port, or several as pulsar://one:6650,two:6650 ({error})") from None
    return text


def _topic(text: str) -> str:
    try:
        return str(TopicName.parse(text))
    except AnabranchError as error:
        raise ValueError(f"a topic's name such as topic://public/default/orders ({error})") from None


def _where(text: str) -> Begin:
    text = text.strip()
    start: Start
    try:
        if text.lower() in ("earliest", "latest"):
            start = "earliest" if text.lower() == "earliest" else "latest"
        elif text.startswith("{"):
            start = text.encode()
        else:
            start = datetime.fromisoformat(text)
        return begin_of(start)
    except (AnabranchError, ValueError) as error:
        raise ValueError(f"{WHERE} ({error})") from None


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("the name of a subscription")
    return text


def _admin_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+/?", text):
        raise ValueError("where brokers answer admin requests, such as http://localhost:8080")
    return text


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(","))
    if len(set(names)) < len(names) or not set(names) <= set(COLUMNS):
        raise ValueError(f"some of {', '.join(COLUMNS)}, each once and with commas between them")
    return names


def _truth(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "serviceUrl": _service_url,
    "topic": _topic,
    "start": _where,
    "end": _where,
    "ordering": _one_of("key", "none"),
    "maxRowsPerTrigger": _count,
    "maxBytesPerTrigger": _count,
    "subscription": _name,
    "failOnDataLoss": _truth,
    "readMode": _one_of("auto", "direct", "broker"),
    "adminUrl": _admin_url,
    "columns": _columns,
    "timeoutSeconds": _seconds,
}
_CANONICAL: Final = {name.lower(): name for name in _READERS}
_REQUIRED: Final = ("serviceUrl", "topic")
# Of no use to the other kind of query, where they would be a misunderstanding.
_ONLY: Final[Mapping[str, Literal["batch", "stream"]]] = {
    "end": "batch",
    "maxRowsPerTrigger": "stream",
    "maxBytesPerTrigger": "stream",
    "subscription": "stream",
}


def parse(given: Mapping[str, str]) -> Options:
    """BadOption for the first mistake."""
    found: dict[str, Any] = {}
    for name, text in sorted(given.items()):
        known = _CANONICAL.get(name.lower())
        if known is None:
            raise BadOption(f"option {name!r} is unknown; there are {', '.join(sorted(_READERS))}")
        try:
            found[known] = _READERS[known](str(text))
        except ValueError as error:
            raise BadOption(f"option {known}={text!r}: give {error}") from None
    for name in _REQUIRED:
        if name not in found:
            raise BadOption(f'option {name} is missing: .option("{name}", …)')
    return Options(
        service_url=found["serviceUrl"],
        topic=found["topic"],
        start=found.get("start"),
        end=found.get("end"),
        ordering=found.get("ordering", "key"),
        limit=Limit(found.get("maxRowsPerTrigger"), found.get("maxBytesPerTrigger")),
        subscription=found.get("subscription"),
        fail_on_data_loss=found.get("failOnDataLoss", True),
        timeout_s=found.get("timeoutSeconds", 60.0),
        read_mode=found.get("readMode", "auto"),
        admin_url=found.get("adminUrl"),
        columns=found.get("columns"),
    )


def check_kind(given: Mapping[str, str], kind: Literal["batch", "stream"]) -> None:
    """BadOption for what only the other kind of query has."""
    for name in given:
        known = _CANONICAL.get(name.lower(), name)
        only = _ONLY.get(known, kind)
        if only != kind:
            raise BadOption(
                f"option {known} is for {'spark.read' if only == 'batch' else 'spark.readStream'} only"
            )
