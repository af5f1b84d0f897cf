"""What is left in a request's ASGI scope on its way to its route: who sends it, and which route answers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.routing import BaseRoute
from starlette.types import Scope

from anabranch.broker.admin.needs import Needs

# The caller's role.
ROLE: Final = "anabranch.role"
# What TLS has verified of the caller, as `ssl` gives it.
CERTIFICATE: Final = "anabranch.certificate"
# A `Found`; None if no route fits the path.
FOUND: Final = "anabranch.found"


@dataclass(frozen=True, slots=True)
class Found:
    """The route that answers a request."""

    route: BaseRoute
    # The route's own path, with names in braces.
    path: str
    needs: Needs
    # What the route has read in the request's path, for the scope.
    matched: Scope
    # False for a route of another method: it answers 405 and does not run.
    runs: bool
