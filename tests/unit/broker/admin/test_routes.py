"""What all routes have in common."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from anabranch.broker import admin


def _routes() -> Iterator[APIRoute]:
    for module in pkgutil.iter_modules(admin.__path__, f"{admin.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, APIRouter):
                yield from (route for route in value.routes if isinstance(route, APIRoute))


def _called(dependant: Dependant) -> Iterator[object]:
    yield dependant.call
    for below in dependant.dependencies:
        yield from _called(below)


def test_no_request_waits_for_a_thread_to_find_out_what_it_names() -> None:
    called = {call for route in _routes() for call in _called(route.dependant)}
    assert len(called) > 100
    plain = [call for call in called if not inspect.iscoroutinefunction(call)]
    assert plain == []
