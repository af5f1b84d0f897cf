"""`/admin/v2/anabranch/ledgers`: how many entries each ledger of a topic or segment has.

For readers that share a topic out among themselves by its entries. The owner of the topic answers; any other broker
sends the caller there. Numbers only, so whoever may look the topic up may ask.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException

from anabranch.broker.admin.errors import RestError, redirect
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, RoleDep, decoded_once
from anabranch.broker.admin.partitions import single
from anabranch.model.names import Domain, TopicName

router = APIRouter()


@router.get("/ledgers/{domain}/{tenant}/{namespace}/{topic:path}")
@needs(Needs.ROUTE)
async def ledgers(
    request: Request, broker: BrokerDep, role: RoleDep, domain: Domain, namespace: NamespaceDep, topic: str
) -> list[tuple[int, int]]:
    """Each with one past its last confirmed entry, in the order of their ids."""
    if domain not in (Domain.PERSISTENT, Domain.SEGMENT):
        raise RestError(412, f"{domain.value}:// has no log of its own: name a persistent topic or a segment")
    name = TopicName.parse(f"{domain.value}://{namespace}/{decoded_once(topic)}")
    await broker.rights.lookup(role, name)
    if not broker.owners.is_mine(name):
        answer = redirect(request, broker.owners.owner(name).http_url)
        raise HTTPException(307, "Ask the topic's owner", {"Location": answer.headers["location"]})
    log = (await single(broker, name)).log
    return [
        (one.id, log.confirmed_end if one.id == log.ledger else one.end or 0)
        for one in log.topic_record.ledgers
    ]
