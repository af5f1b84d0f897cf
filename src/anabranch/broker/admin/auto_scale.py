"""The policy of automatic splits and merges, of a topic and of a namespace, and why a topic did what it did.

    /admin/v2/scalable/{tenant}/{ns}/{topic}/autoScalePolicy                GET POST DELETE
    /admin/v2/namespaces/{tenant}/{ns}/scalableTopicAutoScalePolicy         GET POST DELETE
    /admin/v2/scalable/{tenant}/{ns}/{topic}/explain                        GET

An override sets some fields; the others fall through from the topic to the namespace to the broker. What is set is
refused unless the policy that would then apply holds together. That is a courtesy: a later change of the namespace or
of the broker can still break it, and then the topic is left alone and its stats say so. GET answers what is set here,
204 for nothing; `?applied=true` answers what applies, each field with the level it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from anabranch.autoscale.policy import Override, Resolved, check
from anabranch.broker.admin.auto_scale_json import explained_json, resolved_json
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, body
from anabranch.broker.admin.scalable import TOPIC, ServiceDep, TopicDep
from anabranch.broker.broker import Broker
from anabranch.broker.policies import Policies
from anabranch.broker.scalable.auto_policy import applied
from anabranch.controller.errors import TopicMissing
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import ScalableTopic

topics = APIRouter()
namespaces = APIRouter()

POLICY = TOPIC + "/autoScalePolicy"
NAMESPACE_POLICY = "/{tenant}/{namespace}/scalableTopicAutoScalePolicy"


# -- one topic


@topics.get(POLICY, response_model=None)
async def show(
    topic: TopicDep, broker: BrokerDep, service: ServiceDep, applied: bool = False
) -> Response | dict[str, Any]:
    record = await _record(service, topic)
    if not applied:
        return _answer(record.auto_scale)
    return resolved_json(await _applied(broker, topic.namespace, record.auto_scale))


@topics.post(POLICY, status_code=204)
async def change(topic: TopicDep, broker: BrokerDep, service: ServiceDep, request: Request) -> None:
    """The whole override: what the body leaves out is no longer set."""
    wanted = await _wanted(request)
    await _record(service, topic)
    check((await _applied(broker, topic.namespace, wanted)).policy)
    await _store_topic(service, topic, wanted)


@topics.delete(POLICY, status_code=204)
async def remove(topic: TopicDep, service: ServiceDep) -> None:
    await _store_topic(service, topic, None)


async def _store_topic(service: ScalableTopics, topic: TopicName, value: dict[str, Any] | None) -> None:
    # The layout is the leader's: what it makes of the record in between stays, and so does this.
    await service.update(topic, lambda record: replace(record, auto_scale=value))
    # Another leader's watch tells it a moment later. If we lead, our next look must not miss what was answered.
    if (controller := service.controllers.get(topic)) is not None:
        await controller.read_record()


@topics.get(TOPIC + "/explain")
@needs(Needs.LOOKUP)
async def explain(topic: TopicDep, broker: BrokerDep, service: ServiceDep) -> dict[str, Any]:
    """What was decided in the last hour and why, what would be decided now, and the loads and policy behind it."""
    await _record(service, topic)
    found = await broker.autoscaler.explain(topic)
    return explained_json(topic, (await _record(service, topic)).layout, found)


# -- one namespace


@namespaces.get(NAMESPACE_POLICY, response_model=None)
async def show_namespace(
    namespace: NamespaceDep, broker: BrokerDep, applied: bool = False
) -> Response | dict[str, Any]:
    policies = await broker.resources.policies(namespace)
    if not applied:
        return _answer(policies.scalable_topic_auto_scale_policy)
    return resolved_json(await _applied(broker, namespace, None))


@namespaces.post(NAMESPACE_POLICY, status_code=204)
async def change_namespace(namespace: NamespaceDep, broker: BrokerDep, request: Request) -> None:
    """Checked against the broker's settings. Topics that set something else on top are not asked: see above."""
    wanted = await _wanted(request)
    check(applied(broker.config, Policies(scalable_topic_auto_scale_policy=wanted), None).policy)
    await _store(broker, namespace, wanted)


@namespaces.delete(NAMESPACE_POLICY, status_code=204)
async def remove_namespace(namespace: NamespaceDep, broker: BrokerDep) -> None:
    await _store(broker, namespace, None)


async def _store(broker: Broker, namespace: NamespaceName, value: dict[str, Any] | None) -> None:
    await broker.resources.update_policies(
        namespace,
        lambda policies: msgspec.structs.replace(policies, scalable_topic_auto_scale_policy=value),
    )


# -- both


async def _record(service: ScalableTopics, topic: TopicName) -> ScalableTopic:
    record = await service.get(topic)
    if record is None:
        raise TopicMissing(f"{topic} does not exist as a scalable topic")
    return record


async def _wanted(request: Request) -> dict[str, Any]:
    """The override in the body, with the fields that there are."""
    return Override.decode(await body(request, dict[str, Any])).encode()


def _answer(override: Mapping[str, Any] | None) -> Response:
    return Response(status_code=204) if override is None else JSONResponse(dict(override))


async def _applied(broker: Broker, namespace: NamespaceName, topic: Mapping[str, Any] | None) -> Resolved:
    return applied(broker.config, await broker.resources.policies(namespace), topic)
