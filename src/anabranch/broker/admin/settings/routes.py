"""One setting of a namespace or of a topic: its path, its type, and its four routes.

A setting that is not set answers 204, so that clients see that the level above decides; some have a value nevertheless
(`unset`), where Pulsar's clients expect one. A setting that this broker would not obey can be read, and is refused when
set, with the reason: a limit that is stored and ignored is worse than none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from anabranch.broker.admin.http.answer import NO_CONTENT, HttpAnswer, json_answer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.request import HttpRequest, body_of
from anabranch.broker.admin.http.routes import Handler, Routes
from anabranch.broker.policy.catalogue import CATALOGUE, Policy
from anabranch.broker.policy.namespace import BacklogQuota, QuotaKind
from anabranch.broker.policy.stored_json import Count, Count64, Int32, Int64


@dataclass(frozen=True, slots=True)
class Setting:
    path: str
    field: str
    kind: Any
    # Kept in a map under the cluster's name, as Pulsar does.
    is_per_cluster: bool = False
    # Pulsar's clients send these as a parameter of that name; others may send a body.
    parameter: str | None = None
    # The refusal of a number below 0, where Pulsar's clients expect another text than the usual one.
    fault: str = ""
    # The answer if nothing is set.
    unset: Any = None
    # Pulsar's clients can remove it only by sending no body.
    is_removed_by_nothing: bool = False

    @classmethod
    def of_namespace(cls, policy: Policy) -> Setting:
        return cls(
            policy.namespace_path,
            policy.field,
            policy.kind,
            is_per_cluster=policy.is_per_cluster,
            fault=policy.fault,
            unset=policy.namespace_unset,
            is_removed_by_nothing=policy.is_removed_by_nothing,
        )

    @classmethod
    def of_topic(cls, policy: Policy) -> Setting:
        return cls(
            policy.topic_path,
            policy.field,
            policy.kind,
            is_per_cluster=policy.is_per_cluster,
            parameter=policy.topic_parameter,
            fault=policy.fault,
            unset=policy.topic_unset,
        )

    def value(self, policies: Any) -> Any:
        found = getattr(policies, self.field)
        found = next(iter(found.values()), None) if self.is_per_cluster else found
        return self.unset if found is None else found

    def stored(self, value: Any, cluster: str) -> dict[str, Any]:
        return {self.field: {cluster: value} if self.is_per_cluster else value}

    def removed(self, of: Any) -> dict[str, Any]:
        return {self.field: getattr(of, self.field)}


NAMESPACE_SETTINGS = tuple(Setting.of_namespace(policy) for policy in CATALOGUE if policy.namespace_path)
TOPIC_SETTINGS = tuple(Setting.of_topic(policy) for policy in CATALOGUE if policy.topic_path)


@dataclass(frozen=True, slots=True)
class Unserved:
    """A setting of Pulsar that has no effect here."""

    path: str
    why: str
    unset: Any = None
    # What a topic's GET answers with `applied=true`.
    applied: Any = None


def shown_quotas(quotas: Mapping[QuotaKind, BacklogQuota]) -> dict[str, Any]:
    return {kind: quota.builtins() for kind, quota in quotas.items()}


def shown(value: Any) -> HttpAnswer:
    return NO_CONTENT if value is None else json_answer(msgspec.to_builtins(value))


async def changed(request: HttpRequest, setting: Setting, cluster: str, unset: Any) -> dict[str, Any]:
    """The field that the request sets, from its parameter or its body; its value in `unset`, if the request has
    none."""
    # Read as a number that may be negative, so that the refusal is Pulsar's and not one about JSON.
    value = await _sent(request, setting, _SIGNED.get(setting.kind, setting.kind))
    if value is None:
        return setting.removed(unset)
    if setting.kind in _SIGNED and value < 0:
        raise RestError(412, setting.fault or f"{setting.path} must be 0 or more")
    return setting.stored(value, cluster)


_SIGNED = {Count: Int32, Count64: Int64}


async def _sent(request: HttpRequest, setting: Setting, kind: Any) -> Any:
    if setting.parameter is not None and (text := request.query.get(setting.parameter)):
        try:
            return msgspec.convert(text[-1], kind, strict=False)
        except msgspec.ValidationError as error:
            raise RestError(400, f"Invalid {setting.parameter}: {error}") from None
    return await body_of(request, kind, is_nothing_ok=setting.is_removed_by_nothing)


_VERBS = {"GET": "Show", "POST": "Set", "PUT": "Set", "DELETE": "Remove"}


def add_routes(
    routes: Routes, path: str, setting: Setting, show: Handler, change: Handler, unset: Handler
) -> None:
    for method, handler in (("GET", show), ("POST", change), ("PUT", change), ("DELETE", unset)):
        takes_value = handler is change
        routes.add(
            method,
            path,
            handler,
            status=200 if method == "GET" else 204,
            name=f"{method.lower()}_{setting.path}",
            summary=f"{_VERBS[method]} {setting.path}",
            body=setting.kind if takes_value else None,
            parameter=setting.parameter if takes_value else None,
        )


def add_refusals(
    routes: Routes,
    prefix: str,
    table: Sequence[Unserved],
    check_exists: Callable[[HttpRequest], Awaitable[None]],
) -> None:
    """The settings can be read, and are never set; setting one is refused with the reason."""
    reasons = {one.path: one for one in table}

    async def show(request: HttpRequest, unserved: str, applied: bool = False) -> HttpAnswer:
        await check_exists(request)
        found = reasons[unserved]
        return shown(found.applied if applied and found.applied is not None else found.unset)

    async def refuse(unserved: str) -> None:
        raise RestError(405, f"{unserved} is not supported: {reasons[unserved].why}")

    async def unset(request: HttpRequest) -> HttpAnswer:
        await check_exists(request)
        return NO_CONTENT

    for method, handler, status in (
        ("GET", show, 204),
        ("POST", refuse, 405),
        ("PUT", refuse, 405),
        ("DELETE", unset, 204),
    ):
        routes.add(
            method,
            prefix + "{unserved}",
            handler,
            words=tuple(reasons),
            word_name="unserved",
            status=status,
            summary="is not supported",
        )
