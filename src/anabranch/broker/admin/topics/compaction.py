"""`/admin/v2/persistent/…/compaction`: starts a keyed compaction and reports its status."""

from __future__ import annotations

from anabranch.broker.admin.across.owner_calls import owner_call, owner_read
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.routes import topic_routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.partitions import on_parts
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
    has_started = [started for _, started in await on_parts(services, topic, compact_part)]
    if not any(has_started):
        raise RestError(409, str(AlreadyCompactingError("Compaction already in progress")))


@owner_call
async def compact_part(services: AdminServices, name: TopicName) -> bool:
    """False if a compaction is running already."""
    compaction = (await services.topic(name)).compaction
    if compaction.is_running:
        return False
    compaction.trigger()
    return True


@routes.get("/compaction")
async def compaction_status(services: AdminServices, topic: TopicName) -> dict[str, str]:
    """The status in the form of Pulsar's LongRunningProcessStatus."""
    told = [status for _, status in await on_parts(services, topic, part_status)]
    status, last_error = min(told, key=lambda one: _FIRST.index(one[0]))
    return {"status": status, "lastError": last_error}


@owner_read
async def part_status(services: AdminServices, name: TopicName) -> tuple[str, str]:
    compaction = (await services.topic(name)).compaction
    return compaction.status, compaction.last_error
