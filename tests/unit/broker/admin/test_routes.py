"""What all routes have in common."""

from __future__ import annotations

import inspect

from anabranch.broker.admin.http.parameters import Parameter, asked_by, bound
from anabranch.broker.rest import create_app
from unit.broker.admin.conftest import Rest


async def test_no_request_waits_for_a_thread_to_be_answered(rest: Rest) -> None:
    handlers = {
        route.handler for route in create_app(rest.broker.admin_services(), rest.broker.page).table.routes
    }
    assert len(handlers) > 100
    assert [handler for handler in handlers if not inspect.iscoroutinefunction(handler)] == []


async def test_what_a_handler_asks_for_is_in_the_path_or_may_be_in_the_query(rest: Rest) -> None:
    for route in create_app(rest.broker.admin_services(), rest.broker.page).table.routes:
        bound(route)
        for one in asked_by(route).values():
            if isinstance(one, Parameter) and one.in_path:
                assert one.is_required, f"{route.path}: {one.name} is in the path and has a default"
