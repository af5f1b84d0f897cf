"""Non-persistent topics of all brokers: they exist only where they are open."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from anabranch.broker.admin.across.all_brokers import from_others, heard_from_others
from anabranch.broker.admin.elsewhere import Elsewhere, InnerAnswer, InnerRequest
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.model.names import NamespaceName, TopicName

# How long a client that lists topics waits for brokers that do not answer.
LIST_MAX_S = 2.0

inner = Routes("/inner/non-persistent", needs=Needs.NOTHING, is_described=False)


@inner.get("/{tenant}/{namespace}")
async def names_here(services: AdminServices, namespace: NamespaceName) -> list[str]:
    return [str(name) for name in services.non_persistent.names(namespace)]


async def all_unstored(services: AdminServices, namespace: NamespaceName) -> list[str]:
    """The open non-persistent topics of the namespace at all brokers."""
    answers = await from_others(services.elsewhere, _asked(namespace))
    mine = services.non_persistent.names(namespace)
    return _sorted([*mine, *(name for answer in answers for name in _names(answer))])


async def unstored_elsewhere(elsewhere: Elsewhere, namespace: NamespaceName) -> list[str]:
    """Those of the other brokers, without brokers that do not answer soon."""
    heard = await heard_from_others(elsewhere, _asked(namespace), answer_max_s=LIST_MAX_S)
    answers = [answer for _, answer in heard if answer is not None and answer.is_success]
    return _sorted([name for answer in answers for name in _names(answer)])


def _asked(namespace: NamespaceName) -> InnerRequest:
    return InnerRequest("GET", f"/inner/non-persistent/{namespace}")


def _names(answer: InnerAnswer) -> list[TopicName]:
    return [TopicName.parse(text) for text in msgspec.json.decode(answer.body, type=list[str])]


def _sorted(names: Iterable[TopicName]) -> list[str]:
    return [str(name) for name in sorted(set(names))]
