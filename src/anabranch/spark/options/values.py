"""Reads the text of single options. Pure. A ValueError says what may be given: "a whole number from 1 on"."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from anabranch.client.consuming.core.checkpoint import Begin, begin_of
from anabranch.client.options import check_service_url
from anabranch.errors import AnabranchError
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.segments import HashRange, SegmentId
from anabranch.spark.plan.selection import Choice

WHERE: Final = (
    "'earliest', 'latest', a time with a zone such as 2026-05-01T12:00:00Z, or a checkpoint (its text, or its bytes in "
    "base64); for several topics also a JSON object with any of these by topic"
)
_DURATION: Final = re.compile(r"([0-9]{1,9}) ?(ms|s|m|h|d)")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_HASHES: Final = re.compile(r"([0-9a-fA-F]{4})-([0-9a-fA-F]{4})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Places = Begin | Mapping[str, Begin]


def one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(" or ".join(map(repr, allowed)))
        return text.lower()

    return read


def count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError("a whole number from 1 on")
    return int(text)


def message_bytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1024 <= int(text) <= 1 << 30):
        raise ValueError("a whole number of bytes from 1024 to 1073741824")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ValueError("a number of seconds above 0")
    return value


def duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text.strip())
    value = int(found[1]) * _UNITS_MS[found[2]] if found else 0
    if not value:
        raise ValueError("a time span such as 500ms, 30s, 5m, 2h or 1d")
    return value


def truth(text: str) -> bool:
    return one_of("true", "false")(text) == "true"


def subscription(text: str) -> str:
    if not text.strip():
        raise ValueError("the name of a subscription")
    return text


def some_of(allowed: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        names = tuple(name.strip().lower() for name in text.split(","))
        if len(set(names)) < len(names) or not set(names) <= set(allowed):
            raise ValueError(f"some of {', '.join(allowed)}, each once and with commas between them")
        return names

    return read


def prefix(text: str) -> str:
    if text and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError("the beginning of a column's name, such as value_")
    return text


def file(text: str) -> str:
    if not text.strip():
        raise ValueError("the path of a file in PEM, which every executor has")
    return text


def key_files(text: str) -> tuple[tuple[str, str], ...]:
    """Spark converts names of options to lower case, so the keys' names are in the value."""
    pairs = [one.partition("=") for one in text.split(",")]
    found = tuple((name.strip(), path.strip()) for name, _, path in pairs)
    if not all(name and path for name, path in found) or len({name for name, _ in found}) < len(found):
        raise ValueError(
            "names of keys, each once, and the paths of their private keys in PEM, which every executor has: "
            "orders=/keys/orders.pem, with commas between them"
        )
    return found


def token(text: str) -> str:
    # Unlike all others it is not shown: it is a secret.
    if not text.strip():
        raise ValueError("a token, or file:///path of one, which is read again for each connection")
    return text


def user(text: str) -> str:
    if not text.strip() or ":" in text:
        raise ValueError("the name of a user, without a colon")
    return text


def password(text: str) -> str:
    # Not shown either, so any text is accepted.
    return text


# -- brokers and topics


def admin_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+/?", text):
        raise ValueError("where brokers answer admin requests, such as http://localhost:8080")
    return text


def service_url(text: str) -> str:
    try:
        check_service_url(text)
    except AnabranchError as error:
        raise ValueError(f"pulsar://host:port, or several as pulsar://one:6650,two:6650 ({error})") from None
    return text


def topic(text: str) -> str:
    try:
        return str(TopicName.parse(text.strip()))
    except AnabranchError as error:
        raise ValueError(f"a topic's name such as topic://public/default/orders ({error})") from None


def topics(text: str) -> Choice:
    names = [topic(part) for part in text.split(",") if part.strip()]
    if not names or len(set(names)) != len(names):
        raise ValueError("topics' names with commas between them, each once")
    return Choice.of(*sorted(names))


def topics_pattern(text: str) -> Choice:
    try:
        return Choice.matching(text.strip())
    except (AnabranchError, ValueError) as error:
        raise ValueError(
            f"a namespace and a regular expression of its topics' names, as in public/default/orders-.* ({error})"
        ) from None


def namespace(text: str) -> Choice:
    try:
        return Choice(namespace=str(NamespaceName.parse(text.strip())))
    except AnabranchError as error:
        raise ValueError(f"a namespace such as public/default ({error})") from None


def property_filters(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    found = {key.strip(): value.strip() for key, sign, value in pairs if sign and key.strip()}
    if not found or len(found) != len(pairs):
        raise ValueError("properties with commas between them, each once, as in team=billing,tier=gold")
    return tuple(sorted(found.items()))


# -- places and ranges


def where(text: str) -> Places:
    try:
        return _where(text.strip())
    except (AnabranchError, ValueError, RecursionError) as error:
        raise ValueError(f"{WHERE} ({error})") from None


def _where(text: str) -> Places:
    if text.lower() == "earliest":
        return begin_of("earliest")
    if text.lower() == "latest":
        return begin_of("latest")
    text = _plain(text)
    if not text.startswith("{"):
        return begin_of(datetime.fromisoformat(text))
    value = json.loads(text)
    if "places" in value:
        return begin_of(text.encode())
    by_topic = value["topics"] if set(value) == {"topics", "version"} else value
    if not isinstance(by_topic, dict) or not by_topic:
        raise ValueError("an object that names no topic")
    return {topic(name): _of_one(place) for name, place in by_topic.items()}


def _of_one(value: Any) -> Begin:
    if isinstance(value, dict):
        return begin_of(json.dumps(value).encode())
    found = _where(str(value))
    if isinstance(found, Mapping):
        raise ValueError("an object by topic within another")
    return found


def _plain(text: str) -> str:
    """The text of a checkpoint that is given in base64; any other text unchanged."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text
    return decoded.decode() if decoded.startswith(b"{") else text


def time_ms(text: str) -> int:
    """The first millisecond that is not before the time."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError("a time with a zone such as 2026-05-01T12:00:00Z")
    return max(0, -((_EPOCH - found) // timedelta(milliseconds=1)))


def keys(text: str) -> frozenset[bytes]:
    wrong = "keys with commas between them, or a JSON list of texts"
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            raise ValueError(wrong) from None
        if not all(isinstance(key, str) for key in found):
            raise ValueError(wrong)
    else:
        found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise ValueError(wrong)
    return frozenset(key.encode() for key in found)


def key_range(text: str) -> tuple[HashRange, ...]:
    parts = [_HASHES.fullmatch(part.strip()) for part in text.split(",")]
    try:
        return tuple(sorted(HashRange(int(found[1], 16), int(found[2], 16)) for found in parts))  # type: ignore[index]
    except (TypeError, AnabranchError):
        raise ValueError(
            "ranges of hashes, four hexadecimal digits each, as in 0000-7fff or 0000-0fff,8000-8fff"
        ) from None


def segments(text: str) -> frozenset[SegmentId]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError("numbers of segments with commas between them, as in 0,3,4")
    return frozenset(SegmentId(int(part)) for part in parts)
