"""`anabranch.admin` for programs without an event loop: the same names, parameters and behaviour, with calls that wait.

Nothing is decided in this module: each method runs that of `anabranch.admin` to its end, whose requests are made in the
calling thread. Parameters and docstrings are copied from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from anabranch.admin import admin as aio
from anabranch.admin import rest
from anabranch.client.security import Security, Token

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class AskHere:
    """Performs each request in the calling thread: no coroutine that asks with it ever waits for an event loop."""

    def __init__(self, url: str, timeout_s: float, security: Security) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._security = security

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        return rest.call(self._url, method, path, body, timeout=self._timeout_s, security=self._security)


def _waits(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            method(self._inner, *args, **options).send(None)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]
        raise AssertionError(f"{method.__name__} waits for an event loop")

    return call


class _Part:
    def __init__(self, inner: Any) -> None:
        self._inner = inner


class TopicAdmin(_Part):
    __doc__ = aio.TopicAdmin.__doc__

    names = _waits(aio.TopicAdmin.names)
    exists = _waits(aio.TopicAdmin.exists)
    create = _waits(aio.TopicAdmin.create)
    delete = _waits(aio.TopicAdmin.delete)
    stats = _waits(aio.TopicAdmin.stats)
    partitions = _waits(aio.TopicAdmin.partitions)
    set_partitions = _waits(aio.TopicAdmin.set_partitions)
    properties = _waits(aio.TopicAdmin.properties)
    set_properties = _waits(aio.TopicAdmin.set_properties)
    remove_property = _waits(aio.TopicAdmin.remove_property)
    split = _waits(aio.TopicAdmin.split)
    merge = _waits(aio.TopicAdmin.merge)
    explain = _waits(aio.TopicAdmin.explain)
    migrate = _waits(aio.TopicAdmin.migrate)
    terminate = _waits(aio.TopicAdmin.terminate)
    truncate = _waits(aio.TopicAdmin.truncate)
    compact = _waits(aio.TopicAdmin.compact)
    unload = _waits(aio.TopicAdmin.unload)
    grant = _waits(aio.TopicAdmin.grant)
    revoke = _waits(aio.TopicAdmin.revoke)


class SubscriptionAdmin(_Part):
    __doc__ = aio.SubscriptionAdmin.__doc__

    names = _waits(aio.SubscriptionAdmin.names)
    create = _waits(aio.SubscriptionAdmin.create)
    delete = _waits(aio.SubscriptionAdmin.delete)
    skip_all = _waits(aio.SubscriptionAdmin.skip_all)
    skip = _waits(aio.SubscriptionAdmin.skip)
    expire = _waits(aio.SubscriptionAdmin.expire)
    seek = _waits(aio.SubscriptionAdmin.seek)


class TenantAdmin(_Part):
    __doc__ = aio.TenantAdmin.__doc__

    names = _waits(aio.TenantAdmin.names)
    create = _waits(aio.TenantAdmin.create)
    delete = _waits(aio.TenantAdmin.delete)


class NamespaceAdmin(_Part):
    __doc__ = aio.NamespaceAdmin.__doc__

    names = _waits(aio.NamespaceAdmin.names)
    create = _waits(aio.NamespaceAdmin.create)
    delete = _waits(aio.NamespaceAdmin.delete)
    clear_backlog = _waits(aio.NamespaceAdmin.clear_backlog)
    unload = _waits(aio.NamespaceAdmin.unload)
    permissions = _waits(aio.NamespaceAdmin.permissions)
    grant = _waits(aio.NamespaceAdmin.grant)
    revoke = _waits(aio.NamespaceAdmin.revoke)


class PolicyAdmin(_Part):
    __doc__ = aio.PolicyAdmin.__doc__

    all = _waits(aio.PolicyAdmin.all)
    get = _waits(aio.PolicyAdmin.get)
    set = _waits(aio.PolicyAdmin.set)
    remove = _waits(aio.PolicyAdmin.remove)
    set_retention = _waits(aio.PolicyAdmin.set_retention)
    set_backlog_quota = _waits(aio.PolicyAdmin.set_backlog_quota)
    auto_scale = _waits(aio.PolicyAdmin.auto_scale)
    set_auto_scale = _waits(aio.PolicyAdmin.set_auto_scale)
    remove_auto_scale = _waits(aio.PolicyAdmin.remove_auto_scale)


class SchemaAdmin(_Part):
    __doc__ = aio.SchemaAdmin.__doc__

    get = _waits(aio.SchemaAdmin.get)
    versions = _waits(aio.SchemaAdmin.versions)
    add = _waits(aio.SchemaAdmin.add)
    is_compatible = _waits(aio.SchemaAdmin.is_compatible)
    delete = _waits(aio.SchemaAdmin.delete)


class BrokerAdmin(_Part):
    __doc__ = aio.BrokerAdmin.__doc__

    names = _waits(aio.BrokerAdmin.names)
    check_health = _waits(aio.BrokerAdmin.check_health)
    version = _waits(aio.BrokerAdmin.version)
    settings = _waits(aio.BrokerAdmin.settings)
    change_setting = _waits(aio.BrokerAdmin.change_setting)
    reset_setting = _waits(aio.BrokerAdmin.reset_setting)


class Admin:
    __doc__ = aio.Admin.__doc__

    def __init__(self, asking: AskHere) -> None:
        inner = aio.Admin(asking)
        self.topics = TopicAdmin(inner.topics)
        self.subscriptions = SubscriptionAdmin(inner.subscriptions)
        self.tenants = TenantAdmin(inner.tenants)
        self.namespaces = NamespaceAdmin(inner.namespaces)
        self.policies = PolicyAdmin(inner.policies)
        self.schemas = SchemaAdmin(inner.schemas)
        self.brokers = BrokerAdmin(inner.brokers)


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
    return Admin(AskHere(url, timeout_s, security))


connect.__doc__ = aio.connect.__doc__
