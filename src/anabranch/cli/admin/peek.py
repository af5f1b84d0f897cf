"""Messages that are peeked at over REST, printed one a line. Batches come whole and are split here."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from anabranch.cli.admin.rest import RestRefused, fetch
from anabranch.cli.parsing.options import UsageError


def show(url: str, paths: Iterable[str], *, is_json: bool) -> None:
    """Prints the entries at these paths, up to the first that does not exist. The first one must exist."""
    found: list[dict[str, Any]] = []
    for number, path in enumerate(paths):
        try:
            headers, data = fetch(url, path)
        except RestRefused as refused:
            if refused.status == 404 and number:
                break
            if str(refused) == "Message not found":
                raise RestRefused(404, "there is no message to show") from None
            raise
        found += messages(headers, data)
    if is_json:
        print(json.dumps(found, indent=2))
        return
    for message in found:
        key = f"  key={message['key']}" if message["key"] is not None else ""
        print(f"{message['id']}{key}  {message.get('payload', message.get('payloadBase64'))}")


def messages(headers: Mapping[str, str], data: bytes) -> Iterator[dict[str, Any]]:
    """Each message of an entry."""
    if packing := headers.get("X-Pulsar-compression"):
        raise UsageError(
            f"the broker has left the message packed ({packing}): it lacks the package for that (pip install "
            "anabranch[compression]), or the message is too large to be unpacked there; a consumer receives it"
        )
    place = headers["X-Pulsar-Message-ID"]
    if (segment := headers.get("X-Anabranch-Segment")) is not None:
        place = f"{segment}:{place}"
    common: dict[str, Any] = {
        "id": place,
        "key": headers.get("X-Pulsar-partition-key"),
        "properties": json.loads(headers.get("X-Pulsar-PROPERTY", "{}")),
        "producer": headers.get("X-Pulsar-producer-name"),
        "publishTime": headers.get("X-Pulsar-publish-time"),
        "eventTime": headers.get("X-Pulsar-event-time"),
        "encrypted": headers.get("X-Pulsar-Is-Encrypted") == "true",
    }
    count = headers.get("X-Pulsar-num-batch-message")
    if count is None or common["encrypted"]:
        yield common | _payload(data)
        return
    from anabranch.wire.batch import split_batch

    for index, (single, payload) in enumerate(split_batch(data, int(count))):
        yield common | {
            "id": f"{place}:{index}",
            "key": single.partition_key if single.HasField("partition_key") else None,
            "properties": {item.key: item.value for item in single.properties},
            **_payload(bytes(payload)),
        }


def _payload(data: bytes) -> dict[str, str]:
    try:
        return {"payload": data.decode()}
    except UnicodeDecodeError:
        return {"payloadBase64": base64.b64encode(data).decode()}
