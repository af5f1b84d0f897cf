"""`/admin/v2/persistent/…/compaction`: starts a keyed compaction and tells how it went."""

from __future__ import annotations

from fastapi import APIRouter

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.params import BrokerDep, TopicDep
from anabranch.broker.admin.partitions import each
from anabranch.broker.compaction.topic_compaction import (
    ERROR,
    NOT_RUN,
    RUNNING,
    SUCCESS,
    AlreadyCompactingError,
)

router = APIRouter()

# Of several partitions, what is said is that of the one that calls for attention first.
_FIRST = (ERROR, RUNNING, NOT_RUN, SUCCESS)


@router.put("/compaction", status_code=204)
async def compact(broker: BrokerDep, topic: TopicDep) -> None:
    """Compacts the topic, or every partition that is not being compacted already."""
    found = await each(broker, topic)
    running = [one for one in found if one.compaction.is_running]
    for one in found:
        if one not in running:
            one.compaction.trigger()
    if len(running) == len(found):
        raise RestError(409, str(AlreadyCompactingError("Compaction already in progress")))


@router.get("/compaction")
async def compaction_status(broker: BrokerDep, topic: TopicDep) -> dict[str, str]:
    """Pulsar's LongRunningProcessStatus."""
    said = min(
        (one.compaction for one in await each(broker, topic)), key=lambda one: _FIRST.index(one.status)
    )
    return {"status": said.status, "lastError": said.last_error}
