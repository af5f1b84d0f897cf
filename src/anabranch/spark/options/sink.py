"""The options of the Spark sink: which exist, and what each means. Pure.

Names are matched in any case, like Spark's own. The error for a mistake names the option and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from anabranch.client.hidden_writes.write import check_write
from anabranch.client.producing.batching import COMPRESSIONS, Batching, Compression, compression_of
from anabranch.client.security import NOBODY, Security
from anabranch.errors import AnabranchError
from anabranch.spark.options import values
from anabranch.spark.options.source import ACCESS, BadOption, Kind, security_of, unknown

# Larger than a client's usual: latency of single messages does not matter here.
BATCHING: Final = Batching(messages_max=10_000, bytes_max=256 * 1024)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    service_url: str
    topic: str | None = None  # None: each row names its topic.
    admin_url: str | None = None  # None: the broker announces it.
    # For batches only. None: a write of foreachBatch is named by its query and batch; other writes are never repeated.
    write_id: str | None = None
    fail_on_other_rows: bool = True
    compression: Compression = "none"
    batching: Batching = BATCHING
    encode: bool = False
    encode_prefix: str = ""
    timeout_s: float = 60.0
    security: Security = NOBODY


# -- single values


def _write_id(text: str) -> str:
    try:
        check_write(text, 0)
    except AnabranchError:
        raise ValueError("1 to 200 printable characters, the same each time this write is repeated") from None
    return text


def _compression(text: str) -> str:
    found = values.one_of(*COMPRESSIONS)(text)
    try:
        compression_of(found)
    except AnabranchError as error:
        raise ValueError(f"another one: {error}") from None
    return found


def _size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1024 <= int(text) <= 4 << 20):
        raise ValueError("a whole number of bytes from 1024 to 4194304")
    return int(text)


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "serviceUrl": values.service_url,
    "adminUrl": values.admin_url,
    "topic": values.topic,
    "writeId": _write_id,
    "failOnOtherRows": values.truth,
    "compression": _compression,
    "batchBytes": _size,
    "encode": values.truth,
    "encodePrefix": str,
    "timeoutSeconds": values.seconds,
    **ACCESS,
}
NAMES: Final = tuple(_READERS)
_CANONICAL: Final = {name.lower(): name for name in _READERS}
# Spark's own options, which it passes on.
_SPARKS: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})


def parse(given: Mapping[str, str], kind: Kind) -> SinkOptions:
    """Parses the options. Raises BadOption for the first mistake."""
    found: dict[str, Any] = {}
    for name, text in sorted(given.items()):
        if name.lower() in _SPARKS:
            continue
        known = _CANONICAL.get(name.lower())
        if known is None:
            raise BadOption(unknown(name, _READERS))
        try:
            found[known] = _READERS[known](str(text))
        except ValueError as error:
            raise BadOption(f"option {known}={text!r}: give {error}") from None
    if "serviceUrl" not in found:
        raise BadOption('option serviceUrl is missing: .option("serviceUrl", …)')
    if kind == "stream" and "writeId" in found:
        raise BadOption("option writeId is for df.write only: a streaming query is known by its checkpoint")
    if found.get("encode") and "topic" not in found:
        raise BadOption("option encode=true needs option topic: rows are encoded by the schema of one topic")
    if "encodePrefix" in found and not found.get("encode"):
        raise BadOption("option encodePrefix goes with option encode=true")
    return SinkOptions(
        service_url=found["serviceUrl"],
        topic=found.get("topic"),
        admin_url=found.get("adminUrl"),
        write_id=found.get("writeId"),
        fail_on_other_rows=found.get("failOnOtherRows", True),
        compression=cast(Compression, found.get("compression", "none")),
        batching=replace(BATCHING, bytes_max=found.get("batchBytes", BATCHING.bytes_max)),
        encode=found.get("encode", False),
        encode_prefix=found.get("encodePrefix", ""),
        timeout_s=found.get("timeoutSeconds", 60.0),
        security=security_of(found),
    )
