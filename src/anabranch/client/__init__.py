"""The client: producers and consumers on any event loop. `anabranch.blocking` is its face for threads.

Names are loaded when they are first used: Spark's tasks need only a few modules of this package and start sooner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.client.client import Client as Client
    from anabranch.client.client import connect as connect
    from anabranch.client.consuming.checkpoint import CheckpointConsumer as CheckpointConsumer
    from anabranch.client.consuming.core.checkpoint import merge_checkpoints as merge_checkpoints
    from anabranch.client.consuming.core.redelivery import DeadLetter as DeadLetter
    from anabranch.client.consuming.core.redelivery import NackDelay as NackDelay
    from anabranch.client.consuming.namespace import NamespaceQueueConsumer as NamespaceQueueConsumer
    from anabranch.client.consuming.namespace import NamespaceStreamConsumer as NamespaceStreamConsumer
    from anabranch.client.consuming.queue import QueueConsumer as QueueConsumer
    from anabranch.client.consuming.stream import StreamConsumer as StreamConsumer
    from anabranch.client.crypto.encryption import Encryption as Encryption
    from anabranch.client.errors import AccessFailed as AccessFailed
    from anabranch.client.errors import BadArgument as BadArgument
    from anabranch.client.errors import BadCheckpoint as BadCheckpoint
    from anabranch.client.errors import Closed as Closed
    from anabranch.client.errors import ConnectionLost as ConnectionLost
    from anabranch.client.errors import CryptoFailed as CryptoFailed
    from anabranch.client.errors import DataLost as DataLost
    from anabranch.client.errors import MemoryFull as MemoryFull
    from anabranch.client.errors import MessageIncomplete as MessageIncomplete
    from anabranch.client.errors import RequestRefused as RequestRefused
    from anabranch.client.errors import SchemaMismatch as SchemaMismatch
    from anabranch.client.errors import SchemaRefused as SchemaRefused
    from anabranch.client.errors import TimedOut as TimedOut
    from anabranch.client.errors import TopicDeleted as TopicDeleted
    from anabranch.client.errors import TopicMadeAgain as TopicMadeAgain
    from anabranch.client.errors import Unsupported as Unsupported
    from anabranch.client.message import Message as Message
    from anabranch.client.message_id import BatchReceipt as BatchReceipt
    from anabranch.client.message_id import MessageId as MessageId
    from anabranch.client.producing.batching import Batching as Batching
    from anabranch.client.producing.core.lanes import Routing as Routing
    from anabranch.client.producing.producer import Producer as Producer
    from anabranch.client.schema.avro import AvroSchema as AvroSchema
    from anabranch.client.schema.schemas import BytesSchema as BytesSchema
    from anabranch.client.schema.schemas import JsonSchema as JsonSchema
    from anabranch.client.schema.schemas import Schema as Schema
    from anabranch.client.schema.schemas import StringSchema as StringSchema
    from anabranch.client.schema.types import AvroType as AvroType
    from anabranch.client.tables.topic_rows import TopicRows as TopicRows
    from anabranch.client.tracing.spans import OpenTelemetry as OpenTelemetry
    from anabranch.client.transport.connection import ClientConnection as ClientConnection
    from anabranch.client.transport.layout_watch import LayoutWatch as LayoutWatch
    from anabranch.errors import AnabranchError as AnabranchError
    from anabranch.tables.core.names import NoTable as NoTable

_WHERE = {
    "AccessFailed": "anabranch.client.errors",
    "AnabranchError": "anabranch.errors",
    "AvroSchema": "anabranch.client.schema.avro",
    "AvroType": "anabranch.client.schema.types",
    "BadArgument": "anabranch.client.errors",
    "BadCheckpoint": "anabranch.client.errors",
    "BatchReceipt": "anabranch.client.message_id",
    "Batching": "anabranch.client.producing.batching",
    "BytesSchema": "anabranch.client.schema.schemas",
    "CheckpointConsumer": "anabranch.client.consuming.checkpoint",
    "Client": "anabranch.client.client",
    "ClientConnection": "anabranch.client.transport.connection",
    "Closed": "anabranch.client.errors",
    "ConnectionLost": "anabranch.client.errors",
    "CryptoFailed": "anabranch.client.errors",
    "DataLost": "anabranch.client.errors",
    "DeadLetter": "anabranch.client.consuming.core.redelivery",
    "Encryption": "anabranch.client.crypto.encryption",
    "JsonSchema": "anabranch.client.schema.schemas",
    "LayoutWatch": "anabranch.client.transport.layout_watch",
    "MemoryFull": "anabranch.client.errors",
    "Message": "anabranch.client.message",
    "MessageId": "anabranch.client.message_id",
    "MessageIncomplete": "anabranch.client.errors",
    "NackDelay": "anabranch.client.consuming.core.redelivery",
    "NamespaceQueueConsumer": "anabranch.client.consuming.namespace",
    "NamespaceStreamConsumer": "anabranch.client.consuming.namespace",
    "NoTable": "anabranch.tables.core.names",
    "OpenTelemetry": "anabranch.client.tracing.spans",
    "Producer": "anabranch.client.producing.producer",
    "QueueConsumer": "anabranch.client.consuming.queue",
    "RequestRefused": "anabranch.client.errors",
    "Routing": "anabranch.client.producing.core.lanes",
    "Schema": "anabranch.client.schema.schemas",
    "SchemaMismatch": "anabranch.client.errors",
    "SchemaRefused": "anabranch.client.errors",
    "StreamConsumer": "anabranch.client.consuming.stream",
    "StringSchema": "anabranch.client.schema.schemas",
    "TimedOut": "anabranch.client.errors",
    "TopicDeleted": "anabranch.client.errors",
    "TopicMadeAgain": "anabranch.client.errors",
    "TopicRows": "anabranch.client.tables.topic_rows",
    "Unsupported": "anabranch.client.errors",
    "connect": "anabranch.client.client",
    "merge_checkpoints": "anabranch.client.consuming.core.checkpoint",
}
__all__ = list(_WHERE)

if not TYPE_CHECKING:  # A type checker would accept every name.

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module 'anabranch.client' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_WHERE[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
