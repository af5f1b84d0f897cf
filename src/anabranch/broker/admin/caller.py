"""Who sends an HTTP request. Asked before any route is looked for, so that no route can forget it."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from anabranch.broker.admin.errors import reason
from anabranch.broker.authentication import AuthenticationFailed
from anabranch.broker.sign_in import NOBODY, SignIn

ROLE: Final = "anabranch.role"
# Open to everybody: that the server runs, how it does, and the page's files, not its data.
_PUBLIC: Final = frozenset({"/status.html", "/metrics", "/ui"})


class Caller:
    """Leaves the caller's role in the request, or refuses it with 401."""

    def __init__(self, app: ASGIApp, sign_in: SignIn) -> None:
        self._app = app
        self._sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        role = NOBODY.role
        if not _is_public(scope["path"]):
            try:
                role = self._sign_in.caller(_authorization(scope)).role
            except AuthenticationFailed as error:
                refusal = reason(401, str(error), {"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self._app({**scope, ROLE: role}, receive, send)


def _is_public(path: str) -> bool:
    return path in _PUBLIC or (path.startswith("/ui/") and not path.startswith("/ui/api"))


def _authorization(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return str(value.decode("latin-1"))
    return ""
