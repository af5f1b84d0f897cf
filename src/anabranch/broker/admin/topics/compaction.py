"""`/admin/v2/persistent/…/compaction`: starts a keyed compaction and reports its status."""

from __future__ import annotations

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.routes import topic_routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.partitions import each
from anabranch.broker.compaction.topic_compaction import (
    ERROR,
    NOT_RUN,
    RUNNING,
    SUCCESS,
    AlreadyCompactingError,
)
from anabranch.model.names import Domain, TopicName

routes = topic_routes(Domain.PERSISTENT)

# For several partitions the status is the first of these that one of them has.
_FIRST = (ERROR, RUNNING, NOT_RUN, SUCCESS)


@routes.put("/compaction", status=204)
async def compact(services: AdminServices, topic: TopicName) -> None:
    """Compacts the topic, or every partition that is not being compacted already."""
    found = await each(services, topic)
    running = [one for one in found if one.compaction.is_running]
    for one in found:
        if one not in running:
            one.compaction.trigger()
    if len(running) == len(found):
        raise RestError(409, str(AlreadyCompactingError("Compaction already in progress")))


@routes.get("/compaction")
async def compaction_status(services: AdminServices, topic: TopicName) -> dict[str, str]:
    """The status in the form of Pulsar's LongRunningProcessStatus."""
    said = min(
        (one.compaction for one in await each(services, topic)), key=lambda one: _FIRST.index(one.status)
    )
    return {"status": said.status, "lastError": said.last_error}
