"""Performs a client's commands that look topics up."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.config.listeners import Addresses
from anabranch.broker.connection.session import ClientSession
from anabranch.broker.scalable.naming import TopicNaming, fill_lookup
from anabranch.broker.security.rights import Rights
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb

C = pb.BaseCommand


class LookupCommands:
    def __init__(
        self,
        naming: TopicNaming,
        rights: Rights,
        addresses: Callable[[str], Addresses],
        *,
        has_one_port: bool = False,
    ) -> None:
        """`addresses` returns the addresses of this broker at the listener of that name. `has_one_port`: clients reach
        every broker through the port that they know."""
        self._has_one_port = has_one_port
        self._naming = naming
        self._rights = rights
        self._addresses = addresses

    async def partitions(self, session: ClientSession, request: pb.CommandPartitionedTopicMetadata) -> None:
        answer = C(type=C.PARTITIONED_METADATA_RESPONSE)
        response = answer.partitionMetadataResponse
        response.request_id = request.request_id
        try:
            await self._rights.lookup(session.role, TopicName.parse(request.topic))
            response.partitions = await self._naming.partitions(
                request.topic, create=request.metadata_auto_creation_enabled
            )
            response.response = pb.CommandPartitionedTopicMetadataResponse.Success
        except AnabranchError as error:
            response.response = pb.CommandPartitionedTopicMetadataResponse.Failed
            response.error = error.code or pb.UnknownError  # type: ignore[assignment]  # An int of ServerError.
            response.message = str(error)
        session.send(answer)

    async def lookup(self, session: ClientSession, request: pb.CommandLookupTopic) -> None:
        answer = C(type=C.LOOKUP_RESPONSE)
        response = answer.lookupTopicResponse
        response.request_id = request.request_id
        try:
            listener = request.advertised_listener_name
            await self._rights.lookup(session.role, TopicName.parse(request.topic))
            elsewhere = await self._naming.owner(request.topic)
            fill_lookup(response, self._addresses(listener) if elsewhere is None else elsewhere.at(listener))
            response.proxy_through_service_url = self._has_one_port
        except AnabranchError as error:
            response.response = pb.CommandLookupTopicResponse.Failed
            response.error = error.code or pb.UnknownError  # type: ignore[assignment]  # An int of ServerError.
            response.message = str(error)
        session.send(answer)
