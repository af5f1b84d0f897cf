"""The client: producers and consumers on any event loop. `anabranch.blocking` is its face for threads.

Names are loaded when they are first used: Spark's tasks need a few modules of this package, and start the sooner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.client.batching import Batching as Batching
    from anabranch.client.checkpoint import merge_checkpoints as merge_checkpoints
    from anabranch.client.checkpoint_consumer import CheckpointConsumer as CheckpointConsumer
    from anabranch.client.client import Client as Client
    from anabranch.client.client import connect as connect
    from anabranch.client.connection import ClientConnection as ClientConnection
    from anabranch.client.crypto import Encryption as Encryption
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
    from anabranch.client.errors import TimedOut as TimedOut
    from anabranch.client.errors import TopicDeleted as TopicDeleted
    from anabranch.client.errors import TopicMadeAgain as TopicMadeAgain
    from anabranch.client.errors import Unsupported as Unsupported
    from anabranch.client.lanes import Routing as Routing
    from anabranch.client.layout_watch import LayoutWatch as LayoutWatch
    from anabranch.client.message import Message as Message
    from anabranch.client.message_id import BatchReceipt as BatchReceipt
    from anabranch.client.message_id import MessageId as MessageId
    from anabranch.client.namespace_consumer import NamespaceQueueConsumer as NamespaceQueueConsumer
    from anabranch.client.namespace_consumer import NamespaceStreamConsumer as NamespaceStreamConsumer
    from anabranch.client.producer import Producer as Producer
    from anabranch.client.queue_consumer import QueueConsumer as QueueConsumer
    from anabranch.client.redelivery import DeadLetter as DeadLetter
    from anabranch.client.redelivery import NackDelay as NackDelay
    from anabranch.client.schema_avro import AvroSchema as AvroSchema
    from anabranch.client.schema_types import AvroType as AvroType
    from anabranch.client.schemas import BytesSchema as BytesSchema
    from anabranch.client.schemas import JsonSchema as JsonSchema
    from anabranch.client.schemas import Schema as Schema
    from anabranch.client.schemas import StringSchema as StringSchema
    from anabranch.client.stream_consumer import StreamConsumer as StreamConsumer
    from anabranch.client.tracing import OpenTelemetry as OpenTelemetry
    from anabranch.errors import AnabranchError as AnabranchError

__all__ = [
    "AnabranchError",
    "AvroSchema",
    "AvroType",
    "BadArgument",
    "BadCheckpoint",
    "BatchReceipt",
    "Batching",
    "BytesSchema",
    "CheckpointConsumer",
    "Client",
    "ClientConnection",
    "Closed",
    "ConnectionLost",
    "CryptoFailed",
    "DataLost",
    "DeadLetter",
    "Encryption",
    "JsonSchema",
    "LayoutWatch",
    "MemoryFull",
    "Message",
    "MessageId",
    "MessageIncomplete",
    "NackDelay",
    "NamespaceQueueConsumer",
    "NamespaceStreamConsumer",
    "OpenTelemetry",
    "Producer",
    "QueueConsumer",
    "RequestRefused",
    "Routing",
    "Schema",
    "SchemaMismatch",
    "StreamConsumer",
    "StringSchema",
    "TimedOut",
    "TopicDeleted",
    "TopicMadeAgain",
    "Unsupported",
    "connect",
    "merge_checkpoints",
]

_WHERE = {
    "AnabranchError": "anabranch.errors",
    "AvroSchema": "anabranch.client.schema_avro",
    "AvroType": "anabranch.client.schema_types",
    "BadArgument": "anabranch.client.errors",
    "BadCheckpoint": "anabranch.client.errors",
    "BatchReceipt": "anabranch.client.message_id",
    "Batching": "anabranch.client.batching",
    "BytesSchema": "anabranch.client.schemas",
    "CheckpointConsumer": "anabranch.client.checkpoint_consumer",
    "Client": "anabranch.client.client",
    "ClientConnection": "anabranch.client.connection",
    "Closed": "anabranch.client.errors",
    "ConnectionLost": "anabranch.client.errors",
    "CryptoFailed": "anabranch.client.errors",
    "DataLost": "anabranch.client.errors",
    "DeadLetter": "anabranch.client.redelivery",
    "Encryption": "anabranch.client.crypto",
    "JsonSchema": "anabranch.client.schemas",
    "LayoutWatch": "anabranch.client.layout_watch",
    "MemoryFull": "anabranch.client.errors",
    "Message": "anabranch.client.message",
    "MessageId": "anabranch.client.message_id",
    "MessageIncomplete": "anabranch.client.errors",
    "NackDelay": "anabranch.client.redelivery",
    "NamespaceQueueConsumer": "anabranch.client.namespace_consumer",
    "NamespaceStreamConsumer": "anabranch.client.namespace_consumer",
    "OpenTelemetry": "anabranch.client.tracing",
    "Producer": "anabranch.client.producer",
    "QueueConsumer": "anabranch.client.queue_consumer",
    "RequestRefused": "anabranch.client.errors",
    "Routing": "anabranch.client.lanes",
    "Schema": "anabranch.client.schemas",
    "SchemaMismatch": "anabranch.client.errors",
    "StreamConsumer": "anabranch.client.stream_consumer",
    "StringSchema": "anabranch.client.schemas",
    "TimedOut": "anabranch.client.errors",
    "TopicDeleted": "anabranch.client.errors",
    "TopicMadeAgain": "anabranch.client.errors",
    "Unsupported": "anabranch.client.errors",
    "connect": "anabranch.client.client",
    "merge_checkpoints": "anabranch.client.checkpoint",
}

if not TYPE_CHECKING:  # Which would take every name for one of ours.

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module 'anabranch.client' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_WHERE[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
