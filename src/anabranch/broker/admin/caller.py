"""Who sends an HTTP request. Asked before any route is looked for, so that no route can forget it."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from anabranch.broker.admin.errors import reason
from anabranch.broker.admin.rules import Needs, rule_for
from anabranch.broker.authentication import AuthenticationFailed
from anabranch.broker.authorization import NotAuthorizedError
from anabranch.broker.sign_in import NOBODY, SignIn

ROLE: Final = "anabranch.role"
# What TLS has verified of the caller, as `ssl` gives it.
CERTIFICATE: Final = "anabranch.certificate"


class Caller:
    """Leaves the caller's role in the request, or refuses it with 401."""

    def __init__(self, app: ASGIApp, sign_in: SignIn, *, hides_metrics: bool = False) -> None:
        self._app = app
        self._sign_in = sign_in
        self._hides_metrics = hides_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        role = NOBODY.role
        if not self._is_public(scope["method"], scope["path"]):
            try:
                role = self._sign_in.caller(
                    _header(scope, b"authorization"),
                    scope.get(CERTIFICATE),
                    _header(scope, b"x-original-principal"),
                ).role
            except AuthenticationFailed as error:
                # Browsers answer the other kind with a dialog of their own, before the page can ask.
                challenge = "Bearer" if scope["path"].startswith("/ui/") else self._sign_in.challenge
                refusal = reason(401, str(error), {"WWW-Authenticate": challenge})
                await refusal(scope, receive, send)
                return
            except NotAuthorizedError as error:
                await reason(403, str(error))(scope, receive, send)
                return
        await self._app({**scope, ROLE: role}, receive, send)

    def _is_public(self, method: str, path: str) -> bool:
        """That the server runs, how it does, and the page's files, not its data."""
        rule = rule_for(method, path)
        if rule is None or rule.needs is not Needs.NOTHING:
            return False
        return not (self._hides_metrics and path == "/metrics")


def _header(scope: Scope, wanted: bytes) -> str:
    for name, value in scope["headers"]:
        if name == wanted:
            return str(value.decode("latin-1"))
    return ""
