"""The options of consumers, written once for both faces, and the checks before anything is opened.

Their defaults and meanings are documented at `Client.stream_consumer` and `Client.queue_consumer`; a test compares
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from anabranch.client.consuming.core.redelivery import DeadLetter, NackDelay
from anabranch.client.crypto.encryption import Encryption
from anabranch.client.errors import BadArgument
from anabranch.client.schema.schemas import Schema, schema_of
from anabranch.model.names import NamespaceName, TopicName

# Where a new subscription begins.
From = Literal["latest", "earliest"]


class ConsumerOptions(TypedDict, total=False):
    """The common options of stream and queue consumers. The schema is none of them: it says what type their messages
    have."""

    consumer_name: str | None
    start: From
    encryption: Encryption | None
    receive_queue: int


class QueueOptions(ConsumerOptions, total=False):
    """The further options of queue consumers."""

    processing_timeout_s: float | None
    negative_ack: NackDelay | None
    dead_letter: DeadLetter | None


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """The options that consumers of all kinds are made with."""

    is_earliest: bool
    schema: Schema[Any] | None
    encryption: Encryption | None
    receive_queue: int


def checked(
    topic: str | None,
    namespace: str | None,
    property_filters: Mapping[str, str] | None,
    subscription: str,
    start: From,
    schema: Schema[Any] | type | None,
    encryption: Encryption | None,
    receive_queue: int,
) -> CheckedOptions:
    """Checks the options. Raises BadArgument for invalid ones."""
    if (topic is None) == (namespace is None):
        raise BadArgument("give a topic or a namespace, one of them" + (", not both" if topic else ""))
    if topic is not None and property_filters:
        raise BadArgument("property_filters choose topics of a namespace: give namespace= instead of a topic")
    if topic is not None:
        TopicName.parse(topic)
    if namespace is not None:
        NamespaceName.parse(namespace)
    if not subscription:
        raise BadArgument("subscription is missing: give its name")
    if receive_queue < 1:
        raise BadArgument(f"receive_queue={receive_queue}: give a number of messages from 1 on")
    if start not in ("latest", "earliest"):
        raise BadArgument(
            f"start is {start!r}: give 'latest' or 'earliest'; admin.subscriptions.seek moves a subscription to a time"
        )
    return CheckedOptions(
        start == "earliest", None if schema is None else schema_of(schema), encryption, receive_queue
    )
