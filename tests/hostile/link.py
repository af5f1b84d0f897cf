"""A connection of the hostile client, of its witnesses and of bystanders."""

from __future__ import annotations

import base64
from typing import Final
from urllib.parse import urlsplit

import jwt

from anabranch.wire import pulsar_pb2 as pb
from harness.peer import C, Peer, PeerClosed

SECRET: Final = bytes(range(32))
SECRET_SETTING: Final = "data:;base64," + base64.b64encode(SECRET).decode()


class Refused(Exception):
    """The broker answered a request, which it should have carried out, with an error."""


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


_TOKENS: dict[str, bytes] = {}


def proof(role: str) -> bytes:
    if role not in _TOKENS:
        _TOKENS[role] = token(role).encode()
    return _TOKENS[role]


class Link(Peer):
    def sign_in(self, role: str) -> None:
        command = C(type=C.CONNECT)
        connect = command.connect
        connect.client_version, connect.protocol_version = "hostile", 21
        connect.auth_method_name, connect.auth_data = "token", proof(role)
        connect.feature_flags.supports_scalable_topics = True
        self.send(command)
        self.receive_kind(C.CONNECTED)

    def owner_port(self, topic: str) -> int:
        """The port of the broker that serves the topic, as a lookup gives it."""
        found = self.must(self.ask(C.LOOKUP, "lookupTopic", topic=topic)).lookupTopicResponse
        if found.response == pb.CommandLookupTopicResponse.Failed:
            raise Refused(f"{topic} has no owner: {found.message}")
        return urlsplit(found.brokerServiceUrl).port or 0

    def must(self, answer: pb.BaseCommand) -> pb.BaseCommand:
        if answer.type == C.ERROR:
            raise Refused(f"{pb.ServerError.Name(answer.error.error)}: {answer.error.message}")
        return answer

    def settle(self, within_s: float) -> bool:
        """Whether the connection still lives once all that was sent is read. TimeoutError if nothing is said."""
        try:
            self.send(C(type=C.PING, ping=pb.CommandPing()))
            while True:
                command, _ = self.receive(within_s)
                if command.type == C.PING:
                    self.send(C(type=C.PONG, pong=pb.CommandPong()))
                elif command.type == C.PONG:
                    return True
        except TimeoutError:
            raise
        except (PeerClosed, OSError):
            return False
