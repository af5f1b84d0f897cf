"""Administration from Python: topics, subscriptions, namespaces, policies, schemas and brokers over the admin REST.

Methods take names as clients do: `orders` and `persistent://tenant/ns/orders` are classic topics,
`topic://tenant/ns/orders` is a scalable one, `tenant/ns` is a namespace. A method that the broker has for one kind of
topic only is refused for the other with the broker's reason. Each raises RestRefused, with the status of HTTP, if the
broker does not do what it was asked.

This module only says which request each method is. `Asking` performs it: in a thread of its own here, in the caller's
thread for `anabranch.admin.blocking`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlencode

from anabranch.admin import rest
from anabranch.admin.figures import (
    RegisteredSchema,
    TopicFigures,
    TopicKind,
    registered_schema,
    topic_figures,
)
from anabranch.admin.rest import RestRefused, path_part
from anabranch.client.errors import BadArgument
from anabranch.client.security import Security, Token
from anabranch.model.names import Domain, NamespaceName, TopicName

# Positions before the first and behind the last message, as the protocol has them.
_EARLIEST: Final = {"ledgerId": -1, "entryId": -1}
_LATEST: Final = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}

Action = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]
# What happens when a backlog is over its quota.
OverQuota = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]


class Asking(Protocol):
    """How requests are performed."""

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer: JSON if possible, else text; None if it is empty. RestRefused if it is an error."""


class AskInThread:
    """Performs each request in a thread, as the library that makes it waits for the answer."""

    def __init__(self, url: str, timeout_s: float, security: Security) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._security = security

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        return await asyncio.to_thread(
            rest.call, self._url, method, path, body, timeout=self._timeout_s, security=self._security
        )


class _Part:
    def __init__(self, asking: Asking) -> None:
        self._ask = asking.ask


class TopicAdmin(_Part):
    """Topics: made, found, measured, changed and deleted."""

    async def names(self, namespace: str, *, property_filters: Mapping[str, str] | None = None) -> list[str]:
        """All topics of a namespace: scalable and classic ones, each partition of a partitioned topic.

        With `property_filters`, only the scalable topics that have all of these properties."""
        where = NamespaceName.parse(namespace)
        query = [("property", f"{name}={value}") for name, value in (property_filters or {}).items()]
        found: list[str] = await self._ask("GET", f"/admin/v2/scalable/{where}{_query(query)}")
        if property_filters:
            return sorted(found)
        return sorted([*found, *await self._ask("GET", f"/admin/v2/persistent/{where}")])

    async def exists(self, topic: str) -> bool:
        name = TopicName.parse(topic)
        if name.domain is Domain.TOPIC:
            return await _found(self._ask("GET", _path(name)))
        if await _partitions(self._ask, name):
            return True
        # The list shows a topic without opening it.
        return str(name) in await self._ask("GET", f"/admin/v2/persistent/{name.namespace}")

    async def create(
        self,
        topic: str,
        *,
        segments: int | None = None,
        partitions: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Makes the topic: a scalable one with so many segments (1), or a classic one with so many partitions
        (none)."""
        name = TopicName.parse(topic)
        if name.domain is Domain.TOPIC:
            if partitions is not None:
                raise BadArgument(f"{name} is scalable, and has no partitions: give segments")
            query = {} if segments is None else {"numInitialSegments": segments}
            await self._ask("PUT", f"{_path(name)}{_query(query)}", dict(properties or {}))
            return
        if segments is not None:
            raise BadArgument(
                f"{name} is a classic topic, and has no segments: name it topic://…, or give partitions"
            )
        if partitions is not None:
            if properties:
                raise BadArgument(f"{name}: a partitioned topic takes its properties from its first use")
            await self._ask("PUT", f"{_path(name)}/partitions", partitions)
        else:
            await self._ask("PUT", _path(name), dict(properties or {}))

    async def delete(self, topic: str, *, force: bool = False) -> None:
        """Deletes the topic with its messages and subscriptions; with `force` also while clients are connected."""
        name = TopicName.parse(topic)
        tail = (
            "/partitions" if name.domain is Domain.PERSISTENT and await _partitions(self._ask, name) else ""
        )
        await self._ask("DELETE", f"{_path(name)}{tail}?force={_bool(force)}")

    async def stats(self, topic: str) -> TopicFigures:
        """What flows, what is stored, and what waits in each subscription."""
        name = TopicName.parse(topic)
        kind: TopicKind = "scalable" if name.domain is Domain.TOPIC else "classic"
        tail = "stats"
        if kind == "classic" and await _partitions(self._ask, name):
            kind, tail = "partitioned", "partitioned-stats"
        return topic_figures(str(name), kind, await self._ask("GET", f"{_path(name)}/{tail}"))

    async def partitions(self, topic: str) -> int:
        """How many partitions a classic topic has; 0 if it is not partitioned."""
        return await _partitions(self._ask, TopicName.parse(topic))

    async def set_partitions(self, topic: str, partitions: int) -> None:
        """Raises the number of partitions of a classic topic."""
        await self._ask("POST", f"{_path(TopicName.parse(topic))}/partitions", partitions)

    async def properties(self, topic: str) -> dict[str, str]:
        found: dict[str, str] = await self._ask("GET", f"{_path(TopicName.parse(topic))}/properties")
        return found or {}

    async def set_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        """Sets these properties; others stay."""
        await self._ask("PUT", f"{_path(TopicName.parse(topic))}/properties", dict(properties))

    async def remove_property(self, topic: str, name: str) -> None:
        await self._ask("DELETE", f"{_path(TopicName.parse(topic))}/properties{_query({'key': name})}")

    async def split(self, topic: str, segment: int) -> None:
        """Splits a segment of a scalable topic; returns once the new layout is published."""
        await self._ask("POST", f"{_path(TopicName.parse(topic))}/split/{segment}")

    async def merge(self, topic: str, one: int, other: int) -> None:
        """Merges two neighbouring segments of a scalable topic; returns once the new layout is published."""
        await self._ask("POST", f"{_path(TopicName.parse(topic))}/merge/{one}/{other}")

    async def explain(self, topic: str) -> dict[str, Any]:
        """Why a scalable topic has the segments that it has: its load, the policy, and the last decisions."""
        found: dict[str, Any] = await self._ask("GET", f"{_path(TopicName.parse(topic))}/explain")
        return found

    async def migrate(self, topic: str, *, force: bool = False) -> None:
        """Makes a classic topic the beginning of a scalable one of the same name."""
        name = TopicName.parse(topic)
        scalable = TopicName(Domain.TOPIC, name.namespace, name.local)
        await self._ask("POST", f"{_path(scalable)}/migrate?force={_bool(force)}")

    async def terminate(self, topic: str) -> None:
        """Ends a topic for publishing, for good. Readers read on to its end."""
        name = TopicName.parse(topic)
        tail = (
            "/partitions" if name.domain is Domain.PERSISTENT and await _partitions(self._ask, name) else ""
        )
        await self._ask("POST", f"{_path(name)}/terminate{tail}")

    async def truncate(self, topic: str) -> None:
        """Deletes the messages of a topic, for every subscription."""
        await self._ask("DELETE", f"{_path(TopicName.parse(topic))}/truncate")

    async def compact(self, topic: str) -> None:
        """Begins a compaction of a classic topic: of each key the latest message is kept."""
        await self._ask("PUT", f"{_path(TopicName.parse(topic))}/compaction")

    async def unload(self, topic: str) -> None:
        """Closes a classic topic at its broker; its clients come back to wherever it is opened next."""
        await self._ask("PUT", f"{_path(TopicName.parse(topic))}/unload")

    async def grant(self, topic: str, role: str, actions: Sequence[Action]) -> None:
        await self._ask(
            "POST", f"{_path(TopicName.parse(topic))}/permissions/{path_part(role)}", list(actions)
        )

    async def revoke(self, topic: str, role: str) -> None:
        await self._ask("DELETE", f"{_path(TopicName.parse(topic))}/permissions/{path_part(role)}")


class SubscriptionAdmin(_Part):
    """Subscriptions of topics: made, moved and deleted."""

    async def names(self, topic: str) -> list[str]:
        name = TopicName.parse(topic)
        if name.domain is Domain.TOPIC:
            return sorted((await self._ask("GET", f"{_path(name)}/stats"))["subscriptions"])
        return sorted(await self._ask("GET", f"{_path(name)}/subscriptions"))

    async def create(
        self,
        topic: str,
        subscription: str,
        *,
        start: Literal["earliest", "latest"] | None = None,
        type: Literal["stream", "queue"] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Makes a subscription, before its first consumer comes.

        - `start`: of a classic topic's; "latest" by default. A scalable topic's begins with the first message kept.
        - `type`: of a scalable topic's; "stream" by default.
        - `properties`: of a classic topic's.
        """
        name = TopicName.parse(topic)
        if name.domain is Domain.TOPIC:
            if start == "latest":
                raise BadArgument(
                    f"{name} is scalable: its subscriptions begin at the earliest message; skip_all follows"
                )
            if properties:
                raise BadArgument(f"{name} is scalable: its subscriptions have no properties")
            await self._ask("PUT", f"{_of(name, subscription)}{_query({'type': (type or 'stream').upper()})}")
            return
        if type is not None:
            raise BadArgument(
                f"{name} is a classic topic: its subscriptions have the type of their consumers"
            )
        place: dict[str, Any] = dict(_EARLIEST if start == "earliest" else _LATEST)
        if properties:
            place["properties"] = dict(properties)
        await self._ask("PUT", _of(name, subscription), place)

    async def delete(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Deletes the subscription; with `force` also while consumers are connected, as always on a scalable topic."""
        name = TopicName.parse(topic)
        query = "" if name.domain is Domain.TOPIC else f"?force={_bool(force)}"
        await self._ask("DELETE", f"{_of(name, subscription)}{query}")

    async def skip_all(self, topic: str, subscription: str) -> None:
        """Skips everything published so far."""
        name = TopicName.parse(topic)
        await self._ask(
            "POST", f"{_of(name, subscription)}/{'skip-all' if name.domain is Domain.TOPIC else 'skip_all'}"
        )

    async def skip(self, topic: str, subscription: str, count: int) -> None:
        """Skips the next entries; of a scalable topic by their publish times, whichever segments they are in."""
        await self._ask("POST", f"{_one(TopicName.parse(topic), subscription)}/skip/{count}")

    async def expire(self, topic: str, subscription: str, older_than_s: int) -> None:
        """Skips what was published longer ago than that."""
        await self._ask("POST", f"{_one(TopicName.parse(topic), subscription)}/expireMessages/{older_than_s}")

    async def seek(
        self, topic: str, subscription: str, to: datetime | int | Literal["earliest", "latest"]
    ) -> None:
        """Moves the subscription to the first message published at or after a time, forwards or back; a number is
        milliseconds since 1970."""
        name = TopicName.parse(topic)
        path = _of(name, subscription)
        if name.domain is Domain.TOPIC:
            if to == "latest":
                await self._ask("POST", f"{path}/skip-all")
            else:
                await self._ask("POST", f"{path}/seek?timestamp={0 if to == 'earliest' else _ms(to)}")
        elif to in ("earliest", "latest"):
            await self._ask("POST", f"{path}/resetcursor", _EARLIEST if to == "earliest" else _LATEST)
        else:
            await self._ask("POST", f"{path}/resetcursor/{_ms(to)}")


class TenantAdmin(_Part):
    """Tenants: who owns namespaces."""

    async def names(self) -> list[str]:
        return sorted(await self._ask("GET", "/admin/v2/tenants"))

    async def create(self, tenant: str, *, admin_roles: Sequence[str] = ()) -> None:
        """Makes a tenant that may use every cluster; `admin_roles` may change all that is in it."""
        clusters = await self._ask("GET", "/admin/v2/clusters")
        wanted = {"adminRoles": list(admin_roles), "allowedClusters": clusters}
        await self._ask("PUT", f"/admin/v2/tenants/{path_part(tenant)}", wanted)

    async def delete(self, tenant: str, *, force: bool = False) -> None:
        """Deletes a tenant without namespaces; with `force`, and where the broker allows it, with all that is in it."""
        await self._ask("DELETE", f"/admin/v2/tenants/{path_part(tenant)}?force={_bool(force)}")


class NamespaceAdmin(_Part):
    """Namespaces: made, emptied and deleted. Their policies are those of `policies`."""

    async def names(self, tenant: str) -> list[str]:
        return sorted(await self._ask("GET", f"/admin/v2/namespaces/{path_part(tenant)}"))

    async def create(self, namespace: str, *, bundles: int | None = None) -> None:
        """Makes a namespace; `bundles` is the number of shares in which brokers divide its topics."""
        body = {} if bundles is None else {"bundles": {"numBundles": bundles}}
        await self._ask("PUT", _namespace(namespace), body)

    async def delete(self, namespace: str, *, force: bool = False) -> None:
        """Deletes a namespace without topics; with `force`, and where the broker allows it, with all its topics."""
        await self._ask("DELETE", f"{_namespace(namespace)}?force={_bool(force)}")

    async def clear_backlog(self, namespace: str, subscription: str | None = None) -> None:
        """Skips everything published so far, for that subscription or for all, in every topic."""
        tail = "" if subscription is None else f"/{path_part(subscription)}"
        await self._ask("POST", f"{_namespace(namespace)}/clearBacklog{tail}")

    async def unload(self, namespace: str) -> None:
        """Closes all topics; their clients come back to wherever they are opened next."""
        await self._ask("PUT", f"{_namespace(namespace)}/unload")

    async def permissions(self, namespace: str) -> dict[str, list[str]]:
        """What each role may do on all topics of the namespace."""
        found: dict[str, list[str]] = await self._ask("GET", f"{_namespace(namespace)}/permissions")
        return found

    async def grant(self, namespace: str, role: str, actions: Sequence[Action]) -> None:
        await self._ask("POST", f"{_namespace(namespace)}/permissions/{path_part(role)}", list(actions))

    async def revoke(self, namespace: str, role: str) -> None:
        await self._ask("DELETE", f"{_namespace(namespace)}/permissions/{path_part(role)}")


class PolicyAdmin(_Part):
    """Policies of namespaces (`tenant/ns`) and of single topics (any other name), which count over the namespace's.

    A policy has the name that REST gives it: "retention", "messageTTL", "publishRate", …; docs/client/admin.md
    has them.
    """

    async def all(self, namespace: str) -> dict[str, Any]:
        """Everything that is set for a namespace, as it is stored."""
        found: dict[str, Any] = await self._ask("GET", f"{_namespace(namespace)}/policies")
        return found

    async def get(self, where: str, policy: str, *, in_force: bool = False) -> Any:
        """The value set there, or None; `in_force`: the value that counts for a classic topic, wherever it is set."""
        if in_force and _is_namespace(where):
            raise BadArgument(
                "in_force is of topics: a namespace's policies are in force for each of its topics"
            )
        return await self._ask("GET", f"{_where(where)}/{policy}{'?applied=true' if in_force else ''}")

    async def set(self, where: str, policy: str, value: Any) -> None:
        await self._ask("POST", f"{_where(where)}/{policy}", value)

    async def remove(self, where: str, policy: str) -> None:
        """From now on the level above decides."""
        await self._ask("DELETE", f"{_where(where)}/{policy}")

    async def set_retention(self, where: str, *, minutes: int, megabytes: int) -> None:
        """How long, and how much of, what every subscription has acknowledged is kept; -1 for no limit, 0 for
        nothing."""
        value = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        await self._ask("POST", f"{_where(where)}/retention", value)

    async def set_backlog_quota(
        self,
        where: str,
        *,
        bytes_max: int | None = None,
        seconds_max: int | None = None,
        policy: OverQuota = "producer_request_hold",
    ) -> None:
        """How much may wait for the slowest subscription, or for how long, and what happens beyond that."""
        if (bytes_max is None) == (seconds_max is None):
            raise BadArgument("give bytes_max, or seconds_max: they are two quotas")
        kind = "destination_storage" if seconds_max is None else "message_age"
        value = {
            "limitSize": -1 if bytes_max is None else bytes_max,
            "limitTime": -1 if seconds_max is None else seconds_max,
            "policy": policy,
        }
        await self._ask("POST", f"{_where(where)}/backlogQuota{_query({'backlogQuotaType': kind})}", value)

    async def auto_scale(self, where: str) -> dict[str, Any]:
        """The part of the automatic-scaling policy that is set for a scalable topic, or for a namespace."""
        found: dict[str, Any] | None = await self._ask("GET", _auto_scale(where))
        return found or {}

    async def set_auto_scale(self, where: str, policy: Mapping[str, Any]) -> None:
        """Replaces that part: what `policy` leaves out is decided above."""
        await self._ask("POST", _auto_scale(where), dict(policy))

    async def remove_auto_scale(self, where: str) -> None:
        await self._ask("DELETE", _auto_scale(where))


class SchemaAdmin(_Part):
    """The schemas that are registered for a topic."""

    async def get(self, topic: str, version: int | None = None) -> RegisteredSchema | None:
        """The latest schema, or that version; None if there is none."""
        tail = "" if version is None else f"/{version}"
        try:
            return registered_schema(await self._ask("GET", f"{_schemas(topic)}/schema{tail}"))
        except RestRefused as refused:
            if refused.status == 404:
                return None
            raise

    async def versions(self, topic: str) -> list[RegisteredSchema]:
        """Every version, oldest first."""
        found = await self._ask("GET", f"{_schemas(topic)}/schemas")
        return [registered_schema(one) for one in found["getSchemaResponses"]]

    async def add(
        self, topic: str, type: str, definition: str = "", properties: Mapping[str, str] | None = None
    ) -> int:
        """Registers a schema, as a producer would; returns its version."""
        body = {"type": type, "schema": definition, "properties": dict(properties or {})}
        found = await self._ask("POST", f"{_schemas(topic)}/schema", body)
        return int(found["version"]["version"])

    async def is_compatible(self, topic: str, type: str, definition: str = "") -> bool:
        """Whether a producer might register it now."""
        body = {"type": type, "schema": definition}
        found = await self._ask("POST", f"{_schemas(topic)}/compatibility", body)
        return bool(found["compatibility"])

    async def delete(self, topic: str, *, force: bool = False) -> None:
        """Deletes the schema; with `force` every version, and messages that have one can be decoded no more."""
        await self._ask("DELETE", f"{_schemas(topic)}/schema?force={_bool(force)}")


class BrokerAdmin(_Part):
    """The brokers of the cluster."""

    async def names(self) -> list[str]:
        found: list[str] = await self._ask("GET", "/admin/v2/brokers")
        return found

    async def check_health(self) -> None:
        """Returns if an entry was stored and read back just now; RestRefused says why publishing does not work."""
        await self._ask("GET", "/admin/v2/brokers/health")

    async def version(self) -> str:
        return str(await self._ask("GET", "/admin/v2/brokers/version"))

    async def settings(self) -> dict[str, str]:
        """Every setting of the broker that answers, with its value."""
        found: dict[str, str] = await self._ask("GET", "/admin/v2/brokers/configuration/runtime")
        return found

    async def change_setting(self, name: str, value: str) -> None:
        """Changes a setting that can be changed while brokers run, for all of them."""
        await self._ask("POST", f"/admin/v2/brokers/configuration/{path_part(name)}/{path_part(value)}")

    async def reset_setting(self, name: str) -> None:
        """The setting has again the value with which each broker was started."""
        await self._ask("DELETE", f"/admin/v2/brokers/configuration/{path_part(name)}")


class Admin:
    """The administration of the brokers at one URL. It holds nothing open, and needs no closing."""

    def __init__(self, asking: Asking) -> None:
        self.topics = TopicAdmin(asking)
        self.subscriptions = SubscriptionAdmin(asking)
        self.tenants = TenantAdmin(asking)
        self.namespaces = NamespaceAdmin(asking)
        self.policies = PolicyAdmin(asking)
        self.schemas = SchemaAdmin(asking)
        self.brokers = BrokerAdmin(asking)


def connect(
    url: str = "http://localhost:8080",
    *,
    timeout_s: float = rest.ANSWER_MAX_S,
    token: Token | None = None,
    username: str | None = None,
    password: str | None = None,
    tls_trust_certs_file: str | None = None,
    tls_certificate_file: str | None = None,
    tls_key_file: str | None = None,
    tls_allow_insecure: bool = False,
    tls_check_host_name: bool = True,
) -> Admin:
    """The administration of the brokers behind `http://host:port`, or `https://…`.

    Nothing is asked yet. `timeout_s` is how long an answer may take; the other options are those of
    `anabranch.connect`.
    """
    security = Security(
        token=token,
        username=username,
        password=password,
        tls_trust_certs_file=tls_trust_certs_file,
        tls_certificate_file=tls_certificate_file,
        tls_key_file=tls_key_file,
        tls_allow_insecure=tls_allow_insecure,
        tls_check_host_name=tls_check_host_name,
    )
    return Admin(AskInThread(url, timeout_s, security))


# -- paths


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _query(parameters: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> str:
    return f"?{urlencode(parameters)}" if parameters else ""


def _path(name: TopicName) -> str:
    if name.domain is Domain.SEGMENT:
        raise BadArgument(f"{name} is a segment: name its topic, topic://{name.namespace}/{name.local}")
    if name.domain is Domain.TOPIC:
        return f"/admin/v2/scalable/{name.namespace}/{path_part(name.local)}"
    return f"/admin/v2/{name.rest_path}"


def _of(name: TopicName, subscription: str) -> str:
    kind = "subscriptions" if name.domain is Domain.TOPIC else "subscription"
    return f"{_path(name)}/{kind}/{path_part(subscription)}"


def _one(name: TopicName, subscription: str) -> str:
    """Where both kinds of topics have the same routes."""
    return f"{_path(name)}/subscription/{path_part(subscription)}"


def _namespace(namespace: str) -> str:
    return f"/admin/v2/namespaces/{NamespaceName.parse(namespace)}"


def _is_namespace(where: str) -> bool:
    return "://" not in where and where.count("/") == 1


def _where(where: str) -> str:
    return _namespace(where) if _is_namespace(where) else _path(TopicName.parse(where))


def _auto_scale(where: str) -> str:
    if _is_namespace(where):
        return f"{_namespace(where)}/scalableTopicAutoScalePolicy"
    name = TopicName.parse(where)
    return f"{_path(TopicName(Domain.TOPIC, name.namespace, name.local))}/autoScalePolicy"


def _schemas(topic: str) -> str:
    name = TopicName.parse(topic)
    return f"/admin/v2/schemas/{name.namespace}/{path_part(name.local)}"


def _ms(to: datetime | int | str) -> int:
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise BadArgument(f"{to} has no time zone: datetime.now(timezone.utc) has one")
        return round(to.timestamp() * 1000)
    if isinstance(to, int) and not isinstance(to, bool) and to >= 0:
        return to
    raise BadArgument(f"{to!r}: give a datetime, milliseconds since 1970, 'earliest' or 'latest'")


async def _partitions(ask: Any, name: TopicName) -> int:
    try:
        return int((await ask("GET", f"{_path(name)}/partitions"))["partitions"])
    except RestRefused as refused:
        if refused.status == 404:
            return 0
        raise


async def _found(asked: Any) -> bool:
    try:
        await asked
    except RestRefused as refused:
        if refused.status == 404:
            return False
        raise
    return True
