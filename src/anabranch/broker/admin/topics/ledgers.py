"""`/admin/v2/anabranch/ledgers`: how many entries each ledger of a topic or segment has.

For readers that divide a topic among themselves by its entries. The owner of the topic answers; any other broker
redirects the caller there. The answer holds numbers only, so the right to look the topic up is enough.
"""

from __future__ import annotations

from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Role
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.logged import PATH, LoggedTopic, check_owned
from anabranch.broker.admin.topics.partitions import single

routes = Routes("/admin/v2/anabranch", tag="read plans")


@routes.get("/ledgers" + PATH, needs=Needs.ROUTE)
async def ledgers(services: AdminServices, role: Role, name: LoggedTopic) -> list[tuple[int, int]]:
    """Each ledger with one past its last confirmed entry, in the order of their ids."""
    await services.rights.lookup(role, name)
    await check_owned(services, name)
    log = (await single(services, name)).log
    return [
        (one.id, log.confirmed_end if one.id == log.ledger else one.end or 0)
        for one in log.topic_record.ledgers
    ]
