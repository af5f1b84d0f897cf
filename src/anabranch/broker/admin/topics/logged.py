"""Requests about one log: `…/{domain}/{tenant}/{namespace}/{topic:path}` names a persistent topic or a segment."""

from __future__ import annotations

from typing import Annotated, Final

from anabranch.broker.admin.http.errors import AskElsewhere, RestError
from anabranch.broker.admin.http.names import decoded_once
from anabranch.broker.admin.http.parameters import From
from anabranch.broker.admin.http.request import HttpRequest
from anabranch.broker.admin.services import AdminServices
from anabranch.model.names import Domain, TopicName

PATH: Final = "/{domain}/{tenant}/{namespace}/{topic:path}"
LOGGED: Final = (Domain.PERSISTENT, Domain.SEGMENT)


def _logged(request: HttpRequest) -> TopicName:
    domain, namespace = request.names.domain, request.names.namespace
    if domain not in LOGGED:
        raise RestError(412, f"{domain.value}:// has no log of its own: name a persistent topic or a segment")
    return TopicName.parse(f"{domain.value}://{namespace}/{decoded_once(request.names.words['topic'])}")


LoggedTopic = Annotated[TopicName, From(_logged)]


async def check_owned(services: AdminServices, name: TopicName) -> None:
    """AskElsewhere unless this broker owns the topic: only its owner knows the log."""
    owner = await services.owners.resolve(name)
    if not services.owners.is_mine(name):
        raise AskElsewhere(owner, "Ask the topic's owner")
