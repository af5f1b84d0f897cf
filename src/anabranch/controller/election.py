"""The election of a topic's controller: the broker whose ephemeral record stands at `…/controller`.

Leadership is an economy, not a safeguard: it keeps brokers from doing the same work twice. Two brokers may believe they
lead for a while; the topic's record and the check of every segment's owner keep that harmless.
"""

from __future__ import annotations

from anabranch.metadata.errors import AlreadyExists
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName
from anabranch.model.scalable import controller_path


async def stand(metadata: MetadataStore, topic: TopicName, service_url: str) -> str:
    """Runs for election. Returns the leader's service URL: our own if we won or led already, "" if it is not clear
    yet."""
    path = controller_path(topic)
    try:
        await metadata.create(path, service_url.encode(), ephemeral=True)
        return service_url
    except AlreadyExists:
        found = await metadata.get(path)
    if found is None:
        return ""
    if found.owner == metadata.session.id:
        return service_url
    # A record with our URL and another session is from our own past: it ends with that session.
    return "" if found.value == service_url.encode() else found.value.decode()


async def leader_of(metadata: MetadataStore, topic: TopicName, *, fresh: bool = False) -> str:
    found = await metadata.get(controller_path(topic), fresh=fresh)
    return "" if found is None else found.value.decode()


async def is_leader(metadata: MetadataStore, topic: TopicName) -> bool:
    found = await metadata.get(controller_path(topic), fresh=True)
    return found is not None and found.owner == metadata.session.id


async def resign(metadata: MetadataStore, topic: TopicName) -> None:
    """Gives up the leadership of the topic, if this broker has it."""
    found = await metadata.get(controller_path(topic), fresh=True)
    if found is not None and found.owner == metadata.session.id:
        await metadata.delete(controller_path(topic))
