"""Anabranch: messaging whose topics scale themselves.

The client's names are here. Each is loaded at its first use, because a broker imports this package too and needs none
of them. `anabranch.blocking` has the same names for programs without an event loop; `anabranch.admin` administers
brokers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch import admin as admin
    from anabranch import blocking as blocking
    from anabranch.client import AvroSchema as AvroSchema
    from anabranch.client import AvroType as AvroType
    from anabranch.client import Batching as Batching
    from anabranch.client import BatchReceipt as BatchReceipt
    from anabranch.client import BytesSchema as BytesSchema
    from anabranch.client import CheckpointConsumer as CheckpointConsumer
    from anabranch.client import Client as Client
    from anabranch.client import DeadLetter as DeadLetter
    from anabranch.client import Encryption as Encryption
    from anabranch.client import JsonSchema as JsonSchema
    from anabranch.client import Message as Message
    from anabranch.client import MessageId as MessageId
    from anabranch.client import NackDelay as NackDelay
    from anabranch.client import NamespaceQueueConsumer as NamespaceQueueConsumer
    from anabranch.client import NamespaceStreamConsumer as NamespaceStreamConsumer
    from anabranch.client import NoTable as NoTable
    from anabranch.client import OpenTelemetry as OpenTelemetry
    from anabranch.client import Producer as Producer
    from anabranch.client import QueueConsumer as QueueConsumer
    from anabranch.client import Routing as Routing
    from anabranch.client import Schema as Schema
    from anabranch.client import StreamConsumer as StreamConsumer
    from anabranch.client import StringSchema as StringSchema
    from anabranch.client import TopicRows as TopicRows
    from anabranch.client import connect as connect
    from anabranch.client import merge_checkpoints as merge_checkpoints
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
    from anabranch.errors import AnabranchError as AnabranchError
    from anabranch.version import __version__ as __version__

__all__ = [
    "AccessFailed",
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
    "Closed",
    "ConnectionLost",
    "CryptoFailed",
    "DataLost",
    "DeadLetter",
    "Encryption",
    "JsonSchema",
    "MemoryFull",
    "Message",
    "MessageId",
    "MessageIncomplete",
    "NackDelay",
    "NamespaceQueueConsumer",
    "NamespaceStreamConsumer",
    "NoTable",
    "OpenTelemetry",
    "Producer",
    "QueueConsumer",
    "RequestRefused",
    "Routing",
    "Schema",
    "SchemaMismatch",
    "SchemaRefused",
    "StreamConsumer",
    "StringSchema",
    "TimedOut",
    "TopicDeleted",
    "TopicMadeAgain",
    "TopicRows",
    "Unsupported",
    "connect",
    "merge_checkpoints",
]


if not TYPE_CHECKING:  # With it, type checkers would accept any name.

    def __getattr__(name: str) -> Any:
        if name in ("admin", "blocking"):
            return import_module(f"anabranch.{name}")
        if name == "__version__":
            return import_module("anabranch.version").__version__
        if name not in __all__:
            raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module("anabranch.client"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "admin", "blocking"})
