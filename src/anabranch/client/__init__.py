"""The client: producers and consumers on any event loop. `anabranch.blocking` is its face for threads."""

from anabranch.client.batching import Batching
from anabranch.client.checkpoint import merge_checkpoints
from anabranch.client.checkpoint_consumer import CheckpointConsumer
from anabranch.client.client import Client, connect
from anabranch.client.connection import ClientConnection
from anabranch.client.crypto import Encryption
from anabranch.client.errors import (
    BadArgument,
    BadCheckpoint,
    Closed,
    ConnectionLost,
    CryptoFailed,
    DataLost,
    MemoryFull,
    MessageIncomplete,
    RequestRefused,
    SchemaMismatch,
    TimedOut,
    TopicDeleted,
    Unsupported,
)
from anabranch.client.lanes import Routing
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.message import Message
from anabranch.client.message_id import BatchReceipt, MessageId
from anabranch.client.namespace_consumer import NamespaceQueueConsumer, NamespaceStreamConsumer
from anabranch.client.producer import Producer
from anabranch.client.queue_consumer import QueueConsumer
from anabranch.client.redelivery import DeadLetter, NackDelay
from anabranch.client.schema_avro import AvroSchema
from anabranch.client.schema_types import AvroType
from anabranch.client.schemas import BytesSchema, JsonSchema, Schema, StringSchema
from anabranch.client.stream_consumer import StreamConsumer
from anabranch.client.tracing import OpenTelemetry
from anabranch.errors import AnabranchError

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
    "Unsupported",
    "connect",
    "merge_checkpoints",
]
