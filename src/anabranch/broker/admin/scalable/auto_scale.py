"""The policy of automatic splits and merges, of a topic and of a namespace, and the reasons of a topic's decisions.

    /admin/v2/scalable/{tenant}/{ns}/{topic}/autoScalePolicy                GET POST DELETE
    /admin/v2/namespaces/{tenant}/{ns}/scalableTopicAutoScalePolicy         GET POST DELETE
    /admin/v2/scalable/{tenant}/{ns}/{topic}/explain                        GET

An override sets some fields; the others fall through from the topic to the namespace to the broker. An override is
refused unless the resulting policy is consistent. This check is no guarantee: a later change of the namespace or of the
broker can still make the policy inconsistent, and then the topic is not scaled and its stats say so. GET answers the
override set here, 204 for none; `?applied=true` answers the policy that applies, each field with the level it comes
from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from anabranch.autoscale.policy import Override, Resolved, check
from anabranch.broker.admin.http.answer import NO_CONTENT, HttpAnswer, json_answer
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.scalable.auto_scale_json import explained_json, resolved_json
from anabranch.broker.admin.scalable.topics import TOPIC, Service
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.scalable.load.auto_policy import applied
from anabranch.controller.core.errors import TopicMissing
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.scalable import ScalableTopic

topics = Routes("/admin/v2/scalable", tag="scalable topics", needs=Needs.TENANT_ADMIN, domain=Domain.TOPIC)
namespaces = Routes("/admin/v2/namespaces", tag="namespaces", needs=Needs.TENANT_ADMIN)

POLICY = TOPIC + "/autoScalePolicy"
_POLICY_BYTES_MAX = 64 << 10
NAMESPACE_POLICY = "/{tenant}/{namespace}/scalableTopicAutoScalePolicy"


# -- one topic


@topics.get(POLICY)
async def show(
    topic: TopicName, services: AdminServices, service: Service, applied: bool = False
) -> HttpAnswer | dict[str, Any]:
    record = await _record(service, topic)
    if not applied:
        return _answer(record.auto_scale)
    return resolved_json(await _applied(services, topic.namespace, record.auto_scale))


@topics.post(POLICY, status=204)
async def change(topic: TopicName, services: AdminServices, service: Service, request: HttpRequest) -> None:
    """Sets the whole override: fields that the body leaves out are no longer set."""
    wanted = await _wanted(request)
    await _record(service, topic)
    check((await _applied(services, topic.namespace, wanted)).policy)
    await _store_topic(service, topic, wanted)


@topics.delete(POLICY, status=204)
async def remove(topic: TopicName, service: Service) -> None:
    await _store_topic(service, topic, None)


async def _store_topic(service: ScalableTopics, topic: TopicName, value: dict[str, Any] | None) -> None:
    # The leader changes the layout in the same record: its changes are kept, and so is this one.
    await service.update(topic, lambda record: replace(record, auto_scale=value))
    # Another broker's leader is notified a moment later. If we lead, the next evaluation must already see this change.
    if (controller := service.controllers.get(topic)) is not None:
        await controller.read_record()


@topics.get(TOPIC + "/explain", needs=Needs.LOOKUP)
async def explain(topic: TopicName, services: AdminServices, service: Service) -> dict[str, Any]:
    """The decisions of the last hour with their reasons, the decision that would be made now, and its loads and
    policy."""
    await _record(service, topic)
    found = await services.autoscaler.explain(topic)
    controller = service.controllers.get(topic)
    coordinators = {} if controller is None else controller.coordinators
    groups = {name: coordinator.group for name, coordinator in coordinators.items()}
    return explained_json(topic, (await _record(service, topic)).layout, found, groups)


# -- one namespace


@namespaces.get(NAMESPACE_POLICY)
async def show_namespace(
    namespace: NamespaceName, services: AdminServices, applied: bool = False
) -> HttpAnswer | dict[str, Any]:
    policies = await services.resources.policies(namespace)
    if not applied:
        return _answer(policies.scalable_topic_auto_scale_policy)
    return resolved_json(await _applied(services, namespace, None))


@namespaces.post(NAMESPACE_POLICY, status=204)
async def change_namespace(namespace: NamespaceName, services: AdminServices, request: HttpRequest) -> None:
    """The override is checked against the broker's settings, not against overrides of topics."""
    wanted = await _wanted(request)
    check(applied(services.config, NamespacePolicies(scalable_topic_auto_scale_policy=wanted), None).policy)
    await _store(services, namespace, wanted)


@namespaces.delete(NAMESPACE_POLICY, status=204)
async def remove_namespace(namespace: NamespaceName, services: AdminServices) -> None:
    await _store(services, namespace, None)


async def _store(services: AdminServices, namespace: NamespaceName, value: dict[str, Any] | None) -> None:
    await services.resources.update_policies(
        namespace,
        lambda policies: msgspec.structs.replace(policies, scalable_topic_auto_scale_policy=value),
    )


# -- both


async def _record(service: ScalableTopics, topic: TopicName) -> ScalableTopic:
    record = await service.get(topic)
    if record is None:
        raise TopicMissing(f"{topic} does not exist as a scalable topic")
    return record


async def _wanted(request: HttpRequest) -> dict[str, Any]:
    """The override in the body, with only the fields that are set."""
    return Override.decode(await body(request, dict[str, Any], bytes_max=_POLICY_BYTES_MAX)).encode()


def _answer(override: Mapping[str, Any] | None) -> HttpAnswer:
    return NO_CONTENT if override is None else json_answer(dict(override))


async def _applied(
    services: AdminServices, namespace: NamespaceName, topic: Mapping[str, Any] | None
) -> Resolved:
    return applied(services.config, await services.resources.policies(namespace), topic)
