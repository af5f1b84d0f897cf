"""Resources that Pulsar has and this system does not, as tables: a GET shows none, creating one is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.request import HttpRequest
from anabranch.broker.admin.http.routes import Routes

routes = Routes("/admin/v2", tag="not served")

_NO_BOOKIES = "the broker writes its own log"
# What Pulsar assumes of an unmeasured bundle.
_QUOTA = {
    "msgRateIn": 0.0,
    "msgRateOut": 0.0,
    "bandwidthIn": 0.0,
    "bandwidthOut": 0.0,
    "memory": 0.0,
    "dynamic": True,
}
_NO_QUOTA = "Bundles are placed by their traffic; there is nothing to set"
_OF_BUNDLE = "/resource-quotas/{tenant}/{namespace}/{bundle}"

# Name and path, then what a GET answers and its type.
EMPTY: Sequence[tuple[str, str, Any, Any]] = (
    ("all_bookies", "/bookies/all", {"bookies": []}, dict[str, Any]),
    ("racks", "/bookies/racks-info", {}, dict[str, Any]),
    ("groups", "/resourcegroups", [], list[str]),
    ("quota", "/resource-quotas", _QUOTA, dict[str, Any]),
    ("quota", _OF_BUNDLE, _QUOTA, dict[str, Any]),
)
# Name, methods and path, then the status and the reason, which may contain words of the path.
REFUSED: Sequence[tuple[str, str, str, int, str]] = (
    (
        "no_rack",
        "GET DELETE",
        "/bookies/racks-info/{bookie}",
        404,
        "There is no bookie {bookie}: " + _NO_BOOKIES,
    ),
    (
        "set_rack",
        "POST",
        "/bookies/racks-info/{bookie}",
        405,
        "There are no bookies to place in racks: " + _NO_BOOKIES,
    ),
    ("one_group", "GET DELETE", "/resourcegroups/{group}", 404, "There is no resource group {group}"),
    (
        "make_group",
        "PUT",
        "/resourcegroups/{group}",
        405,
        "There are no resource groups; limit a namespace by publishRate and dispatchRate",
    ),
    ("set_quota", "POST", "/resource-quotas", 405, _NO_QUOTA),
    ("set_quota", "POST DELETE", _OF_BUNDLE, 405, _NO_QUOTA),
)
_FUNCTIONS = (409, "Pulsar Function Worker is not enabled: there are no functions, sources and sinks here")
# Resources that need a service beside the broker: all paths below are answered with Pulsar's status without it.
SERVICES = {
    "v2/functions": _FUNCTIONS,
    "v2/worker": _FUNCTIONS,
    "v2/worker-stats": _FUNCTIONS,
    "v3/functions": _FUNCTIONS,
    "v3/source": _FUNCTIONS,
    "v3/sources": _FUNCTIONS,
    "v3/sink": _FUNCTIONS,
    "v3/sinks": _FUNCTIONS,
    "v3/packages": (503, "Package Management Service is not enabled: there are no packages here"),
    "v3/transactions": (503, "transactionCoordinatorEnabled is false: there are no transactions here"),
}
services = Routes("/admin", tag="not served", is_described=False)


def _empty(name: str, path: str, value: Any, kind: Any) -> None:
    async def answer() -> Any:
        return value

    routes.add("GET", path, answer, name=name, answers=kind)


def _refused(name: str, method: str, path: str, status: int, reason: str) -> None:
    async def refuse(request: HttpRequest) -> None:
        raise RestError(status, reason.format_map(request.names.words))

    routes.add(method, path, refuse, name=name, status=status)


async def _no_service(service: str) -> None:
    raise RestError(*SERVICES[service])


for _row in EMPTY:
    _empty(*_row)
for _name, _methods, _path, _status, _reason in REFUSED:
    for _method in _methods.split():
        _refused(_name, _method, _path, _status, _reason)
for _method in ("GET", "PUT", "POST", "DELETE"):
    services.add(_method, "/{service}/{what:path}", _no_service, words=tuple(SERVICES), word_name="service")
