"""One setting of a namespace or of a topic: where it is found, what it looks like, and its four routes.

A setting that is not set answers 204, so that clients see "whoever is above decides"; some have a value all the same
(`unset`), where Pulsar's clients expect one. A setting that this broker would not
obey can be asked for, and is refused when set, with the reason: a limit that is stored and ignored is worse than none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import body_of
from anabranch.broker.policies import BacklogQuota, QuotaKind
from anabranch.broker.policy_json import Count, Count64, Int32, Int64


@dataclass(frozen=True, slots=True)
class Setting:
    path: str
    field: str
    kind: Any
    # Kept in a map under the cluster's name, as Pulsar does.
    is_per_cluster: bool = False
    # Pulsar's clients send these as a parameter of that name; others may send a body.
    parameter: str | None = None
    # What a number below 0 is answered with, where Pulsar's clients expect other words than the usual ones.
    fault: str = ""
    # What is answered where nothing is set.
    unset: Any = None
    # Pulsar's clients have no other way to remove it than to send nothing.
    is_removed_by_nothing: bool = False

    def value(self, policies: Any) -> Any:
        found = getattr(policies, self.field)
        found = next(iter(found.values()), None) if self.is_per_cluster else found
        return self.unset if found is None else found

    def stored(self, value: Any, cluster: str) -> dict[str, Any]:
        return {self.field: {cluster: value} if self.is_per_cluster else value}

    def removed(self, of: Any) -> dict[str, Any]:
        return {self.field: getattr(of, self.field)}


@dataclass(frozen=True, slots=True)
class Unserved:
    """A setting of Pulsar's that nothing here would obey."""

    path: str
    why: str
    unset: Any = None
    # What a topic's GET answers when it is asked what is in force.
    applied: Any = None


def shown_quotas(quotas: Mapping[QuotaKind, BacklogQuota]) -> dict[str, Any]:
    return {kind: quota.builtins() for kind, quota in quotas.items()}


def shown(value: Any) -> Response:
    return Response(status_code=204) if value is None else JSONResponse(msgspec.to_builtins(value))


async def changed(request: Request, setting: Setting, cluster: str, unset: Any) -> dict[str, Any]:
    """The field that the request sets, from its parameter or its body; as it is in `unset`, if that is what it asks."""
    # Read as what may be negative, so that the answer is the one that Pulsar gives and not one about JSON.
    value = await _sent(request, setting, _SIGNED.get(setting.kind, setting.kind))
    if value is None:
        return setting.removed(unset)
    if setting.kind in _SIGNED and value < 0:
        raise RestError(412, setting.fault or f"{setting.path} must be 0 or more")
    return setting.stored(value, cluster)


_SIGNED = {Count: Int32, Count64: Int64}


async def _sent(request: Request, setting: Setting, kind: Any) -> Any:
    if setting.parameter is not None and (text := request.query_params.get(setting.parameter)) is not None:
        try:
            return msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError as error:
            raise RestError(400, f"Invalid {setting.parameter}: {error}") from None
    return await body_of(request, kind, is_nothing_ok=setting.is_removed_by_nothing)


_VERBS = {"GET": "Show", "POST": "Set", "PUT": "Set", "DELETE": "Remove"}
Handler = Callable[..., Awaitable[Any]]


def add_routes(
    router: APIRouter, path: str, setting: Setting, show: Handler, change: Handler, unset: Handler
) -> None:
    extra = takes(setting.kind, parameter=setting.parameter)
    for method, handler, status in (
        ("GET", show, 200),
        ("POST", change, 204),
        ("PUT", change, 204),
        ("DELETE", unset, 204),
    ):
        router.add_api_route(
            path,
            handler,
            methods=[method],
            status_code=status,
            name=f"{method.lower()}_{setting.path}",
            summary=f"{_VERBS[method]} {setting.path}",
            response_model=None,
            responses={204: {"description": "Not set here."}} if method == "GET" else None,
            openapi_extra=extra if method in ("POST", "PUT") else None,
        )


def add_refusals(router: APIRouter, path: str, unserved: Unserved, exists: Handler) -> None:
    """It can be asked for, and is never set; setting it is refused with the reason."""

    async def show(applied: bool = False) -> Response:
        return shown(unserved.applied if applied and unserved.applied is not None else unserved.unset)

    async def refuse() -> None:
        raise RestError(405, f"{unserved.path} is not supported: {unserved.why}")

    for method, handler, status in (
        ("GET", show, 204 if unserved.unset is None else 200),
        ("POST", refuse, 405),
        ("PUT", refuse, 405),
        ("DELETE", exists, 204),
    ):
        router.add_api_route(
            path,
            handler,
            methods=[method],
            status_code=status,
            dependencies=[Depends(exists)] if method == "GET" else None,
            name=f"{method.lower()}_{unserved.path}",
            summary=f"{unserved.path} is not supported",
            response_model=None,
        )
