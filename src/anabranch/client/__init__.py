"""A small asyncio client for the command line and for tests; the full client grows from here."""

from anabranch.client.connection import ClientConnection, RequestRefused
from anabranch.client.message import Message
from anabranch.client.simple import Client, Consumer, Producer

__all__ = ["Client", "ClientConnection", "Consumer", "Message", "Producer", "RequestRefused"]
