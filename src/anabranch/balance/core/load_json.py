"""Load reports as the messages of the two views: JSON, and back. Pure.

A report of a broker is `{"measuredMs": …, "cpu": 0.4, "msgRateIn": …}` and one of top bundles
`{"measuredMs": …, "bundles": [{"bundle": "tenant/ns/0x…_0x…", "msgRateIn": …}]}`. Fields that a reader does not know
are ignored and missing ones are zero, so that brokers of two releases read each other's.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final

from anabranch.balance.core.load import BrokerLoad, BundleLoad, TopBundles
from anabranch.errors import AnabranchError

_COUNTS: Final = {"measured_ms", "bundles", "topics", "sessions"}
# Larger numbers are no measurement, and would overflow when they are added or squared.
_NUMBER_MAX: Final = 1e15


class BadLoad(AnabranchError):
    """A load report that cannot be read. Readers skip it; the next one replaces it."""


def encode_report(report: BrokerLoad | TopBundles) -> bytes:
    if isinstance(report, BrokerLoad):
        value = _to_json(report)
    else:
        value = {"measuredMs": report.measured_ms, "bundles": [_to_json(one) for one in report.bundles]}
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def decode_broker_load(data: bytes) -> BrokerLoad:
    """Raises BadLoad for anything but an object with a time and numbers that are not negative."""
    value = _decode(data)
    return BrokerLoad(**_numbers(BrokerLoad, value) | {"measured_ms": _time(value)})


def decode_top_bundles(data: bytes) -> TopBundles:
    """Raises BadLoad as `decode_broker_load` does, and for a bundle without a name."""
    value = _decode(data)
    listed = value.get("bundles")
    if not isinstance(listed, list):
        raise BadLoad(f"top bundles are a list, not {listed!r:.100}")
    return TopBundles(_time(value), tuple(_bundle(one) for one in listed))


def _bundle(value: Any) -> BundleLoad:
    if not isinstance(value, dict) or not isinstance(name := value.get("bundle"), str):
        raise BadLoad(f"{value!r:.100} is not the load of a bundle")
    return BundleLoad(bundle=name, **_numbers(BundleLoad, value))


def _to_json(value: BrokerLoad | BundleLoad) -> dict[str, Any]:
    return {_camel(one.name): getattr(value, one.name) for one in fields(value)}


def _numbers(cls: type[BrokerLoad | BundleLoad], value: dict[str, Any]) -> dict[str, Any]:
    """The numbers among the fields that the object has."""
    names = (one.name for one in fields(cls) if one.name != "bundle")
    return {name: _number(name, given) for name in names if (given := value.get(_camel(name))) is not None}


def _number(name: str, value: Any) -> float:
    # Not `>`: a value that is not a number would pass.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _NUMBER_MAX:
        raise BadLoad(f"{_camel(name)} of a load report is {value!r:.100}")
    return int(value) if name in _COUNTS else float(value)


def _time(value: dict[str, Any]) -> int:
    return int(_number("measured_ms", value.get("measuredMs")))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _decode(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadLoad(f"a load report is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadLoad(f"a load report is an object, not {value!r:.100}")
    return value
