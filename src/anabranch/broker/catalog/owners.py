"""Which broker serves a topic.

Ownership is by bundle (`model/bundles.py`). It decides which broker should open a topic; the log's fence decides which
one can write it. So owners may be wrong for a moment, and two brokers may disagree about them, and nothing is lost by
it. A single broker owns everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from anabranch.broker.config.listeners import Addresses, default
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.model.bundles import BundleName
from anabranch.model.names import TopicName


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's addresses for clients."""

    service_url: str
    http_url: str
    service_url_tls: str = ""
    http_url_tls: str = ""
    # By the names of its `advertisedListeners`.
    listeners: Mapping[str, Addresses] = field(default_factory=dict, hash=False)

    @property
    def id(self) -> str:
        """`host:port`, by which brokers know each other."""
        return broker_id(self.service_url)

    @property
    def web_id(self) -> str:
        """`host:port` of the REST, by which admin clients know brokers, as in Pulsar."""
        return (self.http_url or self.http_url_tls).partition("://")[2]

    def at(self, listener: str = "") -> Addresses:
        """The addresses for clients that name this listener, or none. NotAllowedError if there is no such listener."""
        if not listener:
            return Addresses(self.service_url, self.service_url_tls, self.http_url, self.http_url_tls)
        found = self.listeners.get(listener)
        if found is None:
            raise NotAllowedError(
                f"broker {self.id} has no listener named {listener}: see its advertisedListeners"
            )
        return found

    @property
    def for_clients(self) -> Addresses | None:
        """Where any client reaches this broker. None if it has several listeners: which one a client uses is known only
        when the client looks a topic up."""
        if len(self.listeners) > 1:
            return None
        return default(self.listeners, self.at())


# What `on_change` calls: with the bundles that have another owner.
OwnersListener = Callable[[frozenset[BundleName]], None]


class Owners(Protocol):
    def owner(self, topic: TopicName) -> BrokerAddress | None:
        """The broker that should serve the topic now; None while none is known, or while the topic's bundle moves."""
        ...

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        """The broker that should serve the topic. Waits a bounded time for one to be known; NotReadyError, which is
        retryable, if none is. Call this before a topic is opened: it also waits while this broker may open nothing
        because its session is in doubt."""
        ...

    def is_mine(self, topic: TopicName) -> bool:
        """Whether `owner` is this broker."""
        ...

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        """Calls `callback`, on the event loop, with the bundles that have another owner than before, or none. When the
        boundaries of a namespace's bundles change, these are the old and the new ones. Returns a function to stop."""
        ...


class SharedOwners(Owners, Protocol):
    """Owners where several brokers share the topics."""

    def bundle(self, topic: TopicName) -> BundleName | None:
        """The topic's bundle; None while the boundaries of its namespace's are not known."""
        ...

    def owner_of(self, bundle: BundleName) -> BrokerAddress | None:
        """The broker that serves the bundle; None while none is known, or while the bundle moves."""
        ...

    def owned_by(self, broker: str) -> list[BundleName]:
        """The bundles that the broker of that id owns, sorted."""
        ...


class ServedElsewhere(NotReadyError):
    """Another broker serves the topic. Clients look it up again; the REST redirects to that broker."""

    def __init__(self, topic: TopicName, owner: BrokerAddress) -> None:
        super().__init__(f"{topic} is served by {owner.service_url}: look it up again")
        self.topic = topic
        self.owner = owner


async def check_mine(owners: Owners, topic: TopicName) -> None:
    """ServedElsewhere if another broker owns the topic, NotReadyError if none is known to."""
    owner = await owners.resolve(topic)
    if not owners.is_mine(topic):
        raise ServedElsewhere(topic, owner)


class OwnersForClients:
    """Owners as lookups name them: while the session is in doubt, by what was last read.

    A client that connects again is sent to the broker that serves its topic, and no broker opens anything for that. If
    the topic has another owner by now, the former one has lost the log, and confirms nothing."""

    def __init__(
        self, owners: Owners, in_doubt: Callable[[], bool], is_open: Callable[[TopicName], bool]
    ) -> None:
        """`is_open` says whether this broker has the topic open."""
        self._owners = owners
        self._in_doubt = in_doubt
        self._is_open = is_open

    async def find(self, topic: TopicName) -> BrokerAddress:
        """The broker that serves the topic. NotReadyError, which is retryable, if none is known in time."""
        if self._in_doubt():
            known = self._owners.owner(topic)
            if known is not None and (not self._owners.is_mine(topic) or self._is_open(topic)):
                return known
        return await self._owners.resolve(topic)


class SoleOwner:
    """A single broker, which owns everything."""

    def __init__(self, me: BrokerAddress) -> None:
        self._me = me

    def owner(self, topic: TopicName) -> BrokerAddress | None:
        return self._me

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        return self._me

    def is_mine(self, topic: TopicName) -> bool:
        return True

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        return lambda: None


def broker_id(service_url: str) -> str:
    """The id of the broker with that service URL: `host:port`."""
    return service_url.rpartition("/")[2]
