"""The client: producers and consumers on any event loop. `anabranch.blocking` is its face for threads."""

from anabranch.client.batching import Batching
from anabranch.client.checkpoint import Checkpoint, Edge
from anabranch.client.checkpoint_consumer import CheckpointConsumer
from anabranch.client.client import Client, connect
from anabranch.client.connection import ClientConnection
from anabranch.client.errors import (
    BadArgument,
    BadCheckpoint,
    Closed,
    ConnectionLost,
    CryptoFailed,
    DataLost,
    MemoryFull,
    RequestRefused,
    SchemaMismatch,
    TimedOut,
    TopicDeleted,
    Unsupported,
)
from anabranch.client.lanes import Routing
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.message import Message
from anabranch.client.message_id import MessageId
from anabranch.client.producer import Producer
from anabranch.client.queue_consumer import QueueConsumer
from anabranch.client.stream_consumer import StreamConsumer

__all__ = [
    "BadArgument",
    "BadCheckpoint",
    "Batching",
    "Checkpoint",
    "CheckpointConsumer",
    "Client",
    "ClientConnection",
    "Closed",
    "ConnectionLost",
    "CryptoFailed",
    "DataLost",
    "Edge",
    "LayoutWatch",
    "MemoryFull",
    "Message",
    "MessageId",
    "Producer",
    "QueueConsumer",
    "RequestRefused",
    "Routing",
    "SchemaMismatch",
    "StreamConsumer",
    "TimedOut",
    "TopicDeleted",
    "Unsupported",
    "connect",
]
