"""Routes for load balancers and Prometheus, without authentication."""

from __future__ import annotations

from anabranch.broker.admin.http.answer import HttpAnswer
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.observe.metrics import CONTENT_TYPE

routes = Routes("", tag="brokers", needs=Needs.NOTHING)


@routes.get("/status.html", is_text=True, name="_status")
async def status() -> str:
    """For load balancers: the broker is up."""
    return "OK"


@routes.get("/metrics", is_text=True, name="_metrics")
async def metrics(services: AdminServices) -> HttpAnswer:
    """The metrics as Prometheus text."""
    return HttpAnswer(services.metrics(), CONTENT_TYPE)
