"""The REST of the other brokers, for requests that this broker makes on behalf of a caller that it has identified.

Such an *inner* request is answered by the broker that gets it, or refused; it is never passed on. So no request goes in
circles, whatever brokers believe about who owns what.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.errors import NotReadyError

# The least time in which a broker is expected to answer: one that is busy recovering a log takes seconds.
ANSWER_MAX_S: Final = 30.0


class InnerRequest(msgspec.Struct, frozen=True):
    """A request to the REST of another broker."""

    method: str
    # Percent-encoded, as in a URL.
    path: str
    query: str = ""
    body: bytes = b""
    # The role that the first broker has identified; what it may do is judged again by the broker that answers.
    role: str = ""


class InnerAnswer(msgspec.Struct, frozen=True):
    status: int
    body: bytes = b""
    media_type: str = ""
    headers: dict[str, str] = {}

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """Why the request was refused."""
        try:
            return str(msgspec.json.decode(self.body)["reason"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return f"the other broker answered {self.status}"


class BrokerSilent(NotReadyError):
    """Another broker cannot be reached, or did not answer in time. The request may have taken effect."""


class Elsewhere(Protocol):
    @property
    def has_others(self) -> bool:
        """False for a broker that is the only one for as long as it runs."""
        ...

    async def others(self) -> Sequence[BrokerAddress]:
        """The other brokers that are registered now."""
        ...

    async def ask(
        self, broker: BrokerAddress, request: InnerRequest, *, answer_max_s: float = ANSWER_MAX_S
    ) -> InnerAnswer:
        """That broker's answer. BrokerSilent if there is none."""
        ...

    def serve(self, answer: Callable[[InnerRequest], Awaitable[InnerAnswer]]) -> None:
        """From now on other brokers' requests are answered by `answer`."""
        ...


class Alone:
    """Implements `Elsewhere` for a single broker."""

    has_others = False

    async def others(self) -> Sequence[BrokerAddress]:
        return ()

    async def ask(
        self, broker: BrokerAddress, request: InnerRequest, *, answer_max_s: float = ANSWER_MAX_S
    ) -> InnerAnswer:
        raise BrokerSilent(f"{broker.service_url} cannot be asked: this broker has no others beside it")

    def serve(self, answer: Callable[[InnerRequest], Awaitable[InnerAnswer]]) -> None:
        """No other broker asks."""
