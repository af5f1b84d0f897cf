"""An asyncio client: plain topics in `simple`, scalable ones in `scalable`; the full client grows from here."""

from anabranch.client.checkpoint import Checkpoint, Edge
from anabranch.client.checkpoint_consumer import CheckpointConsumer
from anabranch.client.connection import ClientConnection, ConnectionLost, RequestRefused
from anabranch.client.layout_watch import LayoutWatch, TopicDeleted
from anabranch.client.message import Message
from anabranch.client.queue_consumer import QueueConsumer
from anabranch.client.reroute import Routing
from anabranch.client.scalable import ScalableClient
from anabranch.client.scalable_producer import ScalableProducer
from anabranch.client.segment_producer import Receipt
from anabranch.client.simple import Client, Consumer, Producer
from anabranch.client.stream_consumer import StreamConsumer

__all__ = [
    "Checkpoint",
    "CheckpointConsumer",
    "Client",
    "ClientConnection",
    "ConnectionLost",
    "Consumer",
    "Edge",
    "LayoutWatch",
    "Message",
    "Producer",
    "QueueConsumer",
    "Receipt",
    "RequestRefused",
    "Routing",
    "ScalableClient",
    "ScalableProducer",
    "StreamConsumer",
    "TopicDeleted",
]
