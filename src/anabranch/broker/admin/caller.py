"""Who sends an HTTP request. Asked before any route runs, so that no route can forget it.

And whether it is to be read at all. A browser sends requests for whatever page it shows, with the certificate or the
password that its user has given for this broker, or to a broker on the user's own machine that asks nobody: pages of
other sites may change nothing here. Reading is denied to them by the browser, since no answer allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from anabranch.broker.admin.errors import reason
from anabranch.broker.admin.needs import Needs
from anabranch.broker.admin.request_scope import CERTIFICATE, FOUND, ROLE, Found
from anabranch.broker.authentication import AuthenticationFailed
from anabranch.broker.authorization import NotAuthorizedError
from anabranch.broker.sign_in import NOBODY, SignIn


class Caller:
    """Leaves the caller's role in the request, and the route that answers it; or refuses it with 401."""

    def __init__(
        self,
        app: ASGIApp,
        sign_in: SignIn,
        find_route: Callable[[Scope], Found | None],
        *,
        hides_metrics: bool = False,
        head_bytes_max: int = 8192,
    ) -> None:
        self._app = app
        self._find_route = find_route
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
        found = self._find_route(scope)
        if not self._is_public(found):
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
        await self._app({**scope, ROLE: role, FOUND: found}, receive, send)

    def _is_public(self, found: Found | None) -> bool:
        """That the server runs, how it does, and the page's files, not its data."""
        if found is None or not found.runs or found.needs is not Needs.NOTHING:
            return False
        return not (self._hides_metrics and found.path == "/metrics")


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
