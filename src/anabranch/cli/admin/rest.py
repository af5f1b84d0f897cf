"""The admin REST as the command line needs it: with the credentials of the command, and its words in refusals."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from anabranch.admin import rest
from anabranch.admin.rest import ANSWER_MAX_S
from anabranch.admin.rest import RestRefused as RestRefused
from anabranch.cli.render.waiting import waiting_for

if TYPE_CHECKING:
    from anabranch.client.security import Security

_WORDS = rest.Words("--admin-url", "--tls-trust-certs")

# The user's credentials. A process runs one command and has one user.
_asking: Security | None = None
# Whether a user at a terminal is told that an answer takes its time.
_tells_waiting = False


def ask_as(security: Security | None, *, tells_waiting: bool = False) -> None:
    """Sets the credentials and the trusted authorities of every later call."""
    global _asking, _tells_waiting
    _asking, _tells_waiting = security, tells_waiting


def call(base: str, method: str, path: str, body: Any = None, *, timeout: float = ANSWER_MAX_S) -> Any:
    """The answer: JSON if possible, else text; None if it is empty."""
    with _told(base):
        return rest.call(base, method, path, body, timeout=timeout, security=_asking, words=_WORDS)


def fetch(
    base: str, path: str, *, method: str = "GET", body: Any = None, timeout: float = ANSWER_MAX_S
) -> tuple[Mapping[str, str], bytes]:
    """Headers and body of the answer, unchanged."""
    with _told(base):
        return rest.fetch(
            base, path, method=method, body=body, timeout=timeout, security=_asking, words=_WORDS
        )


def _told(base: str) -> AbstractContextManager[None]:
    return waiting_for(base) if _tells_waiting else nullcontext()
