"""Settings that can be changed while brokers run: stored in the metadata store, over each broker's own configuration.

    /admin/configuration        a map of names and texts, as an operator gave them

Only settings that are read at each use are listed; changing any other would have no effect until a restart. Settings of
Pulsar's without meaning here are stored, as in a file of settings, for the tools that read them back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from anabranch.broker.catalog.resources import NotFound, Refused
from anabranch.broker.config import balancer
from anabranch.broker.config.config import FIELDS, BrokerConfig, ConfigError, changed
from anabranch.broker.config.pulsar_settings import DYNAMIC_NAMES
from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.metadata.port import MetadataStore, Watch

log = logging.getLogger(__name__)

CONFIGURATION = "/admin/configuration"

_OF_THE_BROKER: Final = (
    "activeConsumerFailoverDelayTimeMillis",
    "allowAutoSubscriptionCreation",
    "allowAutoTopicCreation",
    "allowAutoTopicCreationType",
    "backlogQuotaCheckEnabled",
    "backlogQuotaDefaultLimitBytes",
    "backlogQuotaDefaultLimitSecond",
    "backlogQuotaDefaultRetentionPolicy",
    "brokerDeduplicationEnabled",
    "defaultNumPartitions",
    "defaultRetentionSizeInMB",
    "defaultRetentionTimeInMinutes",
    "dispatcherMaxReadBatchSize",
    "forceDeleteNamespaceAllowed",
    "forceDeleteTenantAllowed",
    "isAllowAutoUpdateSchemaEnabled",
    "isSchemaValidationEnforced",
    "logLingerBytes",
    "logLingerSeconds",
    "logRetainedDiskShare",
    "maxConsumersPerSubscription",
    "maxConsumersPerTopic",
    "maxNumPartitionsPerPartitionedTopic",
    "maxProducersPerTopic",
    "maxSubscriptionsPerTopic",
    "maxTopicsPerNamespace",
    "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesPerSubscription",
    "schemaCompatibilityStrategy",
    "subscriptionExpirationTimeMinutes",
    "ttlDurationDefaultInSeconds",
)
DYNAMIC: Final = tuple(sorted((*_OF_THE_BROKER, *balancer.DYNAMIC)))


class DynamicConfig:
    """`apply` is called with the configuration in force after each change."""

    def __init__(
        self, metadata: MetadataStore, base: BrokerConfig, apply: Callable[[BrokerConfig], None]
    ) -> None:
        self._metadata = metadata
        self._base = base
        self._apply = apply
        self._values: dict[str, str] = {}
        self._watch: Watch | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        # The watch comes first: changes made while the settings are read cause another read.
        self._watch = self._metadata.watch(CONFIGURATION)
        await self._read()
        self._watching = asyncio.create_task(self._follow(self._watch))  # Awaited by `close`.

    async def close(self) -> None:
        if self._watch is not None and self._watching is not None:
            self._watch.close()
            await self._watching

    @property
    def values(self) -> Mapping[str, str]:
        return self._values

    async def set(self, name: str, text: str) -> None:
        """Stores a setting; refused if it cannot change while brokers run, or cannot have that value."""
        if name in DYNAMIC_NAMES:
            log.info("the dynamic setting %s has no effect here; it is stored", name)
            await self._change(lambda values: {**values, name: text})
            return
        if name not in DYNAMIC:
            raise Refused(
                f"Can't update non-dynamic configuration {name}: set it in the broker's configuration and restart"
            )
        await self._change(lambda values: self._checked({**values, name: text}))

    async def remove(self, name: str) -> None:
        """Removes a setting: the broker's own configuration is in force again."""
        if name not in DYNAMIC and name not in DYNAMIC_NAMES:
            raise Refused(f"Can't update non-dynamic configuration {name}")

        def without(values: Mapping[str, str]) -> dict[str, str]:
            if name not in values:
                raise NotFound(f"{name} is not set dynamically")
            return self._checked({key: value for key, value in values.items() if key != name})

        await self._change(without)

    def _checked(self, values: dict[str, str]) -> dict[str, str]:
        """The values, if they may be in force together."""
        try:
            changed(self._base, _known(values))
        except ConfigError as error:
            raise Refused(f"Invalid dynamic-config value: {error}") from None
        return values

    async def _change(self, change: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
        while True:
            found = await self._metadata.get(CONFIGURATION)
            values = change(_decoded(found.value) if found is not None else {})
            try:
                if found is None:
                    await self._metadata.create(CONFIGURATION, msgspec.json.encode(values))
                else:
                    await self._metadata.put(
                        CONFIGURATION, msgspec.json.encode(values), if_version=found.version
                    )
            except (AlreadyExists, VersionConflict):
                continue
            self._learn(values)
            return

    async def _follow(self, watch: Watch) -> None:
        async for _ in watch:
            try:
                await self._read()
            except Exception:
                # A store that did not answer announces everything again once it does.
                log.exception("reading changed dynamic settings failed, the old ones stay in force")

    async def _read(self) -> None:
        found = await self._metadata.get(CONFIGURATION)
        self._learn(_decoded(found.value) if found is not None else {})

    def _learn(self, values: dict[str, str]) -> None:
        if values == self._values:
            return
        try:
            config = changed(self._base, _known(values))
        except ConfigError as error:
            log.error("dynamic settings are ignored: %s", error)
            return
        self._values = values
        self._apply(config)


def _known(values: Mapping[str, str]) -> dict[str, str]:
    """Those that this broker understands: the release of another one may have more."""
    return {name: _spelled(name, text) for name, text in values.items() if name in DYNAMIC}


def _spelled(name: str, text: str) -> str:
    """The text of a setting. Here, unlike in files, every boolean that is not true is false: Pulsar does the same, and
    its clients' tests rely on it."""
    is_odd = FIELDS[name].type is bool and text.strip().lower() not in ("true", "false")
    if is_odd:
        log.warning("the dynamic setting %s is neither true nor false, taking it as false", name)
    return "false" if is_odd else text


def _decoded(value: bytes) -> dict[str, str]:
    return msgspec.json.decode(value, type=dict[str, str]) if value else {}
