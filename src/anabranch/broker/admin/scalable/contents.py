"""`/admin/v2/scalable/…`: everything that a scalable topic holds is deleted, or nothing more is accepted."""

from __future__ import annotations

from anabranch.broker.admin.across.owner_calls import at_owners
from anabranch.broker.admin.http.routes import scalable_routes
from anabranch.broker.admin.scalable.messages import Ids, last_message_ids
from anabranch.broker.admin.scalable.parts import segments_of
from anabranch.broker.admin.scalable.topics import Service
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.storage import truncate_part
from anabranch.model.names import TopicName

routes, by_java = scalable_routes()


async def truncate(services: AdminServices, topic: TopicName, service: Service) -> None:
    """Deletes every message of every segment, read or not, regardless of retention; subscriptions continue at the
    end."""
    names = await segments_of(services, service, topic)
    await at_owners(services, names.values(), truncate_part)


async def terminate(services: AdminServices, topic: TopicName, service: Service) -> Ids:
    """Seals every segment, without successors: the topic accepts no more messages, permanently, and its consumers reach
    its end. Answers the id of the last message of each segment."""
    await segments_of(services, service, topic)
    await service.terminate(topic)
    return await last_message_ids(services, topic, service)


for _table in (routes, by_java):
    _table.delete("/truncate", status=204)(truncate)
    _table.post("/terminate")(terminate)
