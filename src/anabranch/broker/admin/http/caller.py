"""The role that sends an HTTP request. Determined before any route runs, so that no route can forget it.

Also whether the request is read at all. A browser sends requests on behalf of any page it shows, with the certificate
or the password that its user has given for this broker, or to a broker without authentication on the user's own
machine: so pages of other sites may change nothing here. The browser does not let them read answers, since no answer
allows it.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.request import CERTIFICATE, HttpRequest
from anabranch.broker.admin.http.route_table import FoundRoute
from anabranch.broker.connection.sign_in import SignIn
from anabranch.broker.security.authentication import NOBODY, AuthenticationFailed, TooManyTries

# The headers that say who asks.
_ONCE: Final = (b"authorization", b"x-original-principal")


class Caller:
    def __init__(self, sign_in: SignIn, *, hides_metrics: bool = False, head_bytes_max: int = 8192) -> None:
        self._sign_in = sign_in
        self._hides_metrics = hides_metrics
        self._head_bytes_max = head_bytes_max

    async def role(self, request: HttpRequest, found: FoundRoute | None) -> str:
        """The role that sends the request. RestError with 401, or NotAuthorizedError, if the request is refused."""
        if self._is_public(found):
            return NOBODY.role
        try:
            identity = await self._sign_in.caller(
                request.header(b"authorization"),
                request.scope.get(CERTIFICATE),
                request.header(b"x-original-principal"),
                host=(request.scope.get("client") or ("",))[0],
            )
        except TooManyTries as error:
            raise RestError(429, str(error), {"Retry-After": "1"}) from None
        except AuthenticationFailed as error:
            # Browsers answer the other challenge with a dialog of their own, before the page can ask.
            challenge = "Bearer" if request.path.startswith("/ui/") else self._sign_in.challenge
            raise RestError(401, str(error), {"WWW-Authenticate": challenge}) from None
        return identity.role

    def _is_public(self, found: FoundRoute | None) -> bool:
        """Public are the probes, the metrics unless hidden, and the page's files, but not the page's data."""
        if found is None or not found.runs or found.route.needs is not Needs.NOTHING:
            return False
        return not (self._hides_metrics and found.route.path == "/metrics")

    def check(self, request: HttpRequest) -> None:
        """RestError for a request that is refused regardless of its sender."""
        size = len(request.path) + len(request.scope["query_string"])
        size += sum(len(name) + len(value) for name, value in request.scope["headers"])
        if size > self._head_bytes_max:
            raise RestError(
                431,
                f"The request's head has {size} bytes: {self._head_bytes_max} are possible (httpMaxRequestHeaderSize)",
                {"Connection": "close"},
            )
        if request.header(b"transfer-encoding") and request.header(b"content-length"):
            # A proxy before us may use the other one, and take what follows for another caller's request.
            text = "The request has a Content-Length and a Transfer-Encoding: send one of them"
            raise RestError(400, text, {"Connection": "close"})
        for name in _ONCE:
            if request.headers(name) > 1:
                # A proxy that adds its own must not be outdone by the one that the client has sent.
                raise RestError(
                    400, f"The request has several headers {name.decode()}", {"Connection": "close"}
                )
        if request.method not in ("GET", "HEAD", "OPTIONS") and not _is_own_page(request):
            raise RestError(403, "A page of another site may change nothing here")


def _is_own_page(request: HttpRequest) -> bool:
    """Whether the browser's headers say that our own page sent this request. Other programs send no such headers."""
    if site := request.header(b"sec-fetch-site"):
        return site in ("same-origin", "none")
    origin = request.header(b"origin")
    return not origin or urlsplit(origin).netloc == request.header(b"host")
