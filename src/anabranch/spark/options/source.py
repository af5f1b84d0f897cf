"""The options of the Spark source: which exist, and what each means. Pure.

Names are matched in any case, like Spark's own. The error for a mistake names the option and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from anabranch.client.consuming.core.checkpoint import CLOCKS_APART_MS
from anabranch.client.security import NOBODY, Security
from anabranch.errors import AnabranchError
from anabranch.model.cut import Cut
from anabranch.spark.options import values
from anabranch.spark.options.values import Places
from anabranch.spark.plan.limit import UNLIMITED, Limit
from anabranch.spark.plan.plan import Ordering
from anabranch.spark.plan.ranges import ANY, Ranges
from anabranch.spark.plan.selection import Choice
from anabranch.spark.plan.task import ObjectAccess, ReadMode
from anabranch.wire.sizes import UNPACKED_BYTES_MAX

# How the source and the sink authenticate, and which brokers they trust.
ACCESS: Final[Mapping[str, Callable[[str], Any]]] = {
    "authToken": values.token,
    "username": values.user,
    "password": values.password,
    "tlsTrustCertsFile": values.file,
    "tlsCertificateFile": values.file,
    "tlsKeyFile": values.file,
    "tlsAllowInsecure": values.truth,
    "tlsCheckHostName": values.truth,
}

Kind = Literal["batch", "stream"]
DecodeErrors = Literal["fail", "null"]

# The columns of the source's rows, each with its type in Spark's notation.
COLUMNS: Final[Mapping[str, str]] = {
    "key": "binary",
    "value": "binary",
    "properties": "map<string, string>",
    "topic": "string",
    "segment": "bigint",
    "message_id": "struct<ledger: bigint, entry: bigint, index: int>",
    # Not `timestamp`, which means another type if spark.sql.timestampType says so.
    "publish_time": "timestamp_ltz",
    "event_time": "timestamp_ltz",
    "position": "struct<segment: bigint, ledger: bigint, entry: bigint, index: int>",
}
# All columns, in Spark's SQL notation.
SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
# The default of Spark's source for Kafka.
DELAY_MS: Final = 15 * 60_000


class BadOption(AnabranchError, ValueError):
    """An option of the source is missing, unknown or has a value that is not allowed."""


@dataclass(frozen=True, slots=True)
class Options:
    service_url: str
    choice: Choice
    start: Places | None = None  # None: the earliest for a batch, the latest for a stream.
    end: Places | None = None  # None: the latest. Streams do not use it.
    ranges: Ranges = ANY
    ordering: Ordering = "key"
    # A batch keeps the rows of a key in one task only if `ordering` says so: cutting by position is cheaper.
    orders_batches: bool = False
    min_partitions: int = 1
    max_partitions: int | None = None  # None: chosen by the amount of data.
    limit: Limit = UNLIMITED
    rows_min: int = 1  # A batch waits for this many rows,
    delay_ms: int = DELAY_MS  # but not longer than this.
    skew_ms: int | None = None
    subscription: str | None = None
    fail_on_data_loss: bool = True
    timeout_s: float = 60.0
    security: Security = NOBODY
    read_mode: ReadMode = "auto"
    admin_url: str | None = None  # None: the brokers announce it.
    # How objects of the log are read: by URLs that the broker has signed, or with the worker's own credentials.
    object_access: ObjectAccess = "signed"
    columns: tuple[str, ...] | None = None  # None: all.
    message_bytes_max: int = UNPACKED_BYTES_MAX  # The limit of a message or a batch, once unpacked.
    # Names of keys, and the paths of their private halves on each worker.
    decryption_keys: tuple[tuple[str, str], ...] = ()
    decode: bool = False
    decode_errors: DecodeErrors = "fail"
    decode_prefix: str = ""


@dataclass(frozen=True, slots=True)
class _Option:
    read: Callable[[str], Any]
    # The only kind of query that has this option; giving it to the other kind would be a misunderstanding.
    only: Kind | None = None


_OPTIONS: Final[Mapping[str, _Option]] = {
    "serviceUrl": _Option(values.service_url),
    "topic": _Option(lambda text: Choice.of(values.topic(text))),
    "topics": _Option(values.topics),
    "topicsPattern": _Option(values.topics_pattern),
    "namespace": _Option(values.namespace),
    "propertyFilters": _Option(values.property_filters),
    "start": _Option(values.where),
    "end": _Option(values.where, "batch"),
    "startTime": _Option(values.time_ms),
    "endTime": _Option(values.time_ms),
    "keys": _Option(values.keys),
    "keyRange": _Option(values.key_range),
    "segments": _Option(values.segments),
    "ordering": _Option(values.one_of("key", "none")),
    "minPartitions": _Option(values.count),
    "maxPartitions": _Option(values.count),
    "maxRowsPerTrigger": _Option(values.count, "stream"),
    "maxBytesPerTrigger": _Option(values.count, "stream"),
    "minRowsPerTrigger": _Option(values.count, "stream"),
    "maxTriggerDelay": _Option(values.duration_ms, "stream"),
    "maxTimeSkew": _Option(values.duration_ms, "stream"),
    "subscription": _Option(values.subscription, "stream"),
    "failOnDataLoss": _Option(values.truth),
    "readMode": _Option(values.one_of("auto", "direct", "broker")),
    "adminUrl": _Option(values.admin_url),
    "objectAccess": _Option(values.one_of("signed", "own")),
    "columns": _Option(values.some_of(COLUMNS)),
    "maxMessageBytes": _Option(values.message_bytes),
    "timeoutSeconds": _Option(values.seconds),
    **{name: _Option(read) for name, read in ACCESS.items()},
    "decryptionKeys": _Option(values.key_files),
    "decode": _Option(values.truth),
    "decodeErrors": _Option(values.one_of("fail", "null")),
    "decodePrefix": _Option(values.prefix),
}
NAMES: Final = tuple(_OPTIONS)
_CANONICAL: Final = {name.lower(): name for name in _OPTIONS}
# Spark's prefix for a table's options, beside the same ones without it.
_OF_A_TABLE: Final = "option."
_CHOICES: Final = ("topic", "topics", "topicsPattern", "namespace")


def parse(given: Mapping[str, str], kind: Kind | None = None) -> Options:
    """Parses the options. Raises BadOption for the first mistake. The kind of query is unknown where Spark asks for the
    schema."""
    found: dict[str, Any] = {}
    for name, text in sorted(given.items()):
        known = _CANONICAL.get(name.lower())
        if known is None and name.lower().startswith(_OF_A_TABLE):
            raise BadOption(
                "CREATE TABLE … USING anabranch is not possible: when such a table is read, Spark passes none of its "
                "options to a source in Python. Use CREATE TEMPORARY VIEW … USING anabranch OPTIONS (…), or spark.read"
            )
        if known is None:
            raise BadOption(unknown(name, _OPTIONS))
        try:
            found[known] = _OPTIONS[known].read(str(text))
        except ValueError as error:
            raise BadOption(f"option {known}={text!r}: give {error}") from None
    if "serviceUrl" not in found:
        raise BadOption('option serviceUrl is missing: .option("serviceUrl", "pulsar://host:6650")')
    options = Options(
        service_url=found["serviceUrl"],
        choice=_choice(found),
        start=_around(found.get("start"), found.get("startTime"), -CLOCKS_APART_MS),
        end=_around(found.get("end"), found.get("endTime"), CLOCKS_APART_MS),
        ranges=Ranges(
            found.get("startTime"),
            found.get("endTime"),
            found.get("keys"),
            found.get("keyRange"),
            found.get("segments"),
        ),
        ordering=found.get("ordering", "key"),
        orders_batches=found.get("ordering") == "key",
        min_partitions=found.get("minPartitions", 1),
        max_partitions=found.get("maxPartitions"),
        limit=Limit(found.get("maxRowsPerTrigger"), found.get("maxBytesPerTrigger")),
        rows_min=found.get("minRowsPerTrigger", 1),
        delay_ms=found.get("maxTriggerDelay", DELAY_MS),
        skew_ms=found.get("maxTimeSkew"),
        subscription=found.get("subscription"),
        fail_on_data_loss=found.get("failOnDataLoss", True),
        timeout_s=found.get("timeoutSeconds", 60.0),
        security=security_of(found),
        read_mode=found.get("readMode", "auto"),
        admin_url=found.get("adminUrl"),
        object_access=found.get("objectAccess", "signed"),
        columns=found.get("columns"),
        message_bytes_max=found.get("maxMessageBytes", UNPACKED_BYTES_MAX),
        decryption_keys=found.get("decryptionKeys", ()),
        decode=found.get("decode", False),
        decode_errors=found.get("decodeErrors", "fail"),
        decode_prefix=found.get("decodePrefix", ""),
    )
    _check_together(options, found)
    if kind is not None:
        _check_kind(found, kind)
    return options


def unknown(name: str, known: Iterable[str]) -> str:
    """The error text for an unknown option, with the nearest known one."""
    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    meant = f"; did you mean {names[near[0]]}?" if near else "."
    return f"option {name!r} is unknown{meant} There are {', '.join(sorted(names.values()))}"


def security_of(found: Mapping[str, Any]) -> Security:
    """The security settings from the options `ACCESS`, once they are read."""
    if ("tlsCertificateFile" in found) != ("tlsKeyFile" in found):
        raise BadOption("options tlsCertificateFile and tlsKeyFile belong together: give both, or none")
    if ("username" in found) != ("password" in found):
        raise BadOption("options username and password belong together: give both, or none")
    if "username" in found and "authToken" in found:
        raise BadOption("options authToken and username are two ways to say who you are: give one")
    return Security(
        token=found.get("authToken"),
        username=found.get("username"),
        password=found.get("password"),
        tls_trust_certs_file=found.get("tlsTrustCertsFile"),
        tls_certificate_file=found.get("tlsCertificateFile"),
        tls_key_file=found.get("tlsKeyFile"),
        tls_allow_insecure=found.get("tlsAllowInsecure", False),
        tls_check_host_name=found.get("tlsCheckHostName", True),
    )


def _choice(found: Mapping[str, Any]) -> Choice:
    named = [name for name in _CHOICES if name in found]
    if len(named) != 1:
        wrong = f"options {' and '.join(named)} exclude each other" if named else "no topic is named"
        raise BadOption(
            f"{wrong}: give exactly one of {', '.join(_CHOICES)}, as in "
            '.option("topic", "topic://public/default/orders")'
        )
    choice: Choice = found[named[0]]
    if "propertyFilters" not in found:
        return choice
    if choice.is_named:
        raise BadOption(f"option propertyFilters is for namespace and topicsPattern, and {named[0]} is given")
    return replace(choice, filters=found["propertyFilters"])


def _around(place: Places | None, time_ms: int | None, margin_ms: int) -> Places | None:
    """Where to begin, or to end, unless that is given: brokers know times only in the order of positions."""
    if place is not None or time_ms is None:
        return place
    return max(0, time_ms + margin_ms)


# -- combinations of options


def _check_together(options: Options, found: Mapping[str, Any]) -> None:
    for name in ("start", "end"):
        _check_places(name, found.get(name), options.choice)
    ranges, limit = options.ranges, options.limit
    if ranges.since_ms is not None and ranges.until_ms is not None and ranges.since_ms >= ranges.until_ms:
        raise BadOption("option endTime: give a time after startTime")
    if ranges.segments is not None and len(options.choice.names) != 1:
        raise BadOption(
            "option segments: numbers of segments are those of one topic: give topic, and no more"
        )
    for name in ("decodeErrors", "decodePrefix"):
        if name in found and not options.decode:
            raise BadOption(f"option {name} is of no use without decode=true")
    if options.decode and options.columns is not None and "value" not in options.columns:
        raise BadOption("option columns: decode=true decodes value: name it too, or leave decode out")
    most = options.max_partitions
    if most is not None and options.min_partitions > most:
        raise BadOption(f"option minPartitions={options.min_partitions}: give at most maxPartitions, {most}")
    if "maxTriggerDelay" in found and "minRowsPerTrigger" not in found:
        raise BadOption("option maxTriggerDelay is for minRowsPerTrigger, which is not given")
    if limit.rows is not None and options.rows_min > limit.rows:
        raise BadOption(
            f"option minRowsPerTrigger={options.rows_min}: give at most maxRowsPerTrigger, {limit.rows}"
        )


def _check_places(name: str, places: Places | None, choice: Choice) -> None:
    if isinstance(places, Cut) and places.places and len(choice.names) != 1:
        raise BadOption(
            f"option {name}: a checkpoint is of one topic, and the query reads {choice}: give a JSON object with a "
            "checkpoint for each"
        )
    if isinstance(places, Mapping):
        for topic in places:
            if not choice.has(topic):
                raise BadOption(f"option {name} names {topic}, and the query reads {choice}")


def _check_kind(found: Mapping[str, Any], kind: Kind) -> None:
    for name in found:
        only = _OPTIONS[name].only
        if only is not None and only != kind:
            raise BadOption(
                f"option {name} is for {'spark.read' if only == 'batch' else 'spark.readStream'} only"
            )
