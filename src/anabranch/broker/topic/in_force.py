"""The policies in force for one topic, and the effects of each change: limits, quotas, rates, deduplication.

`policies` has the topic's own policies over its namespace's; `effective` fills in the configuration where neither sets
anything.
"""

from __future__ import annotations

from anabranch.broker.policy.backlog_quota import quotas_of
from anabranch.broker.policy.limits import TopicLimits, limits_of
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.topic.publishing import Publishing
from anabranch.broker.topic.quotas import BacklogQuotas
from anabranch.broker.topic.sequence_ids import SequenceIds
from anabranch.broker.topic.services import TopicServices
from anabranch.broker.topic.subscriptions import Subscribing
from anabranch.broker.topic.throttle import TopicPacing
from anabranch.model.names import TopicName


class PoliciesInForce:
    __slots__ = (
        "_name",
        "_of_namespace",
        "_pacing",
        "_publishing",
        "_sequence_ids",
        "_services",
        "_subscribing",
        "effective",
        "limits",
        "policies",
        "quotas",
    )

    def __init__(
        self,
        services: TopicServices,
        name: TopicName,
        publishing: Publishing,
        pacing: TopicPacing,
        subscribing: Subscribing,
        sequence_ids: SequenceIds,
        quotas: BacklogQuotas,
    ) -> None:
        self._services = services
        self._name = name
        self._publishing = publishing
        self._pacing = pacing
        self._subscribing = subscribing
        self._sequence_ids = sequence_ids
        self._of_namespace = self.policies = NamespacePolicies()
        self.effective = services.effective.of(self.policies)
        self.limits = TopicLimits()
        self.quotas = quotas

    def apply(self, policies: NamespacePolicies) -> None:
        """Applies the namespace's policies from now on."""
        self._of_namespace = policies
        self.changed()

    def changed(self) -> None:
        """Applies a change of the topic's own policies, or of the configuration behind all policies."""
        config = self._services.config()
        self.policies = self._services.policies.over(self._of_namespace, self._name)
        found = self.effective = self._services.effective.of(self.policies)
        limits = self.limits = limits_of(config, found)
        self.quotas.set(quotas_of(config, found))
        self._pacing.apply(limits)
        self._subscribing.limit(limits)
        self._publishing.require_encryption(limits.is_encryption_required)
        self._publishing.limit_messages(limits.message_bytes_max, limits.delay_ms_max)
        self._sequence_ids.want(found.deduplication_enabled)
