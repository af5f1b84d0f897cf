"""Who sends an HTTP request. Asked before any route is looked for, so that no route can forget it.

And whether it is to be read at all. A browser sends requests for whatever page it shows, with the certificate or the
password that its user has given for this broker, or to a broker on the user's own machine that asks nobody: pages of
other sites may change nothing here. Reading is denied to them by the browser, since no answer allows it.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
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

    def __init__(
        self, app: ASGIApp, sign_in: SignIn, *, hides_metrics: bool = False, head_bytes_max: int = 8192
    ) -> None:
        self._app = app
        self._sign_in = sign_in
        self._hides_metrics = hides_metrics
        self._head_bytes_max = head_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (fault := _fault(scope, self._head_bytes_max)) is not None:
            await fault(scope, receive, send)
            return
        role = NOBODY.role
        if not self._is_public(scope["method"], scope["path"]):
            try:
                identity = await self._sign_in.caller(
                    _header(scope, b"authorization"),
                    scope.get(CERTIFICATE),
                    _header(scope, b"x-original-principal"),
                    host=(scope.get("client") or ("",))[0],
                )
                role = identity.role
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


def _fault(scope: Scope, head_bytes_max: int) -> JSONResponse | None:
    """The refusal of a request that is not to be read, whoever sends it."""
    size = len(scope["path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > head_bytes_max:
        text = (
            f"The request's head has {size} bytes: {head_bytes_max} are possible (httpMaxRequestHeaderSize)"
        )
        return reason(431, text, {"Connection": "close"})
    if _header(scope, b"transfer-encoding") and _header(scope, b"content-length"):
        # A proxy before us may go by the other one, and take what follows for a request of somebody else.
        text = "The request has a Content-Length and a Transfer-Encoding: send one of them"
        return reason(400, text, {"Connection": "close"})
    if scope["method"] in ("GET", "HEAD", "OPTIONS") or _is_own_page(scope):
        return None
    return reason(403, "A page of another site may change nothing here")


def _is_own_page(scope: Scope) -> bool:
    """Whether what a browser says of itself is that our own page sent this. Other programs say nothing."""
    if site := _header(scope, b"sec-fetch-site"):
        return site in ("same-origin", "none")
    origin = _header(scope, b"origin")
    return not origin or urlsplit(origin).netloc == _header(scope, b"host")


def _header(scope: Scope, wanted: bytes) -> str:
    for name, value in scope["headers"]:
        if name == wanted:
            return str(value.decode("latin-1"))
    return ""
