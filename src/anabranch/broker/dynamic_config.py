"""Settings that can be changed while brokers run: kept in the metadata store, over what each broker was started with.

    /admin/configuration        a map of names and texts, as an operator gave them

Only settings that are read wherever they matter are listed; changing another one would change nothing until a restart.
Those of Pulsar's that mean nothing here are kept, as in a file of settings, for the tools that read them back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from anabranch.broker.config import FIELDS, BrokerConfig, ConfigError, changed
from anabranch.broker.pulsar_settings import DYNAMIC_NAMES
from anabranch.broker.resources import NotFound, Refused
from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.metadata.port import MetadataStore, Watch

log = logging.getLogger(__name__)

CONFIGURATION = "/admin/configuration"

DYNAMIC: Final = (
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


class DynamicConfig:
    """`apply` is given the configuration in force after each change."""

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
        # Watched first: what is changed while it is read is read again.
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
        """Refused if the setting cannot change while brokers run, or not to that."""
        if name in DYNAMIC_NAMES:
            log.info("the dynamic setting %s means nothing here; it is kept", name)
            await self._change(lambda values: {**values, name: text})
            return
        if name not in DYNAMIC:
            raise Refused(
                f"Can't update non-dynamic configuration {name}: set it in the broker's configuration and restart"
            )
        try:
            changed(self._base, {name: _spelled(name, text)})
        except ConfigError as error:
            raise Refused(f"Invalid dynamic-config value: {error}") from None
        await self._change(lambda values: {**values, name: text})

    async def remove(self, name: str) -> None:
        """What the broker was started with is in force again."""
        if name not in DYNAMIC and name not in DYNAMIC_NAMES:
            raise Refused(f"Can't update non-dynamic configuration {name}")

        def without(values: Mapping[str, str]) -> dict[str, str]:
            if name not in values:
                raise NotFound(f"{name} is not set dynamically")
            return {key: value for key, value in values.items() if key != name}

        await self._change(without)

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
                log.exception("dynamic settings could not be read again; the old ones stay in force")

    async def _read(self) -> None:
        found = await self._metadata.get(CONFIGURATION)
        self._learn(_decoded(found.value) if found is not None else {})

    def _learn(self, values: dict[str, str]) -> None:
        if values == self._values:
            return
        # Another broker's release may know settings that this one does not.
        known = {name: _spelled(name, text) for name, text in values.items() if name in DYNAMIC}
        try:
            config = changed(self._base, known)
        except ConfigError as error:
            log.error("dynamic settings are not obeyed: %s", error)
            return
        self._values = values
        self._apply(config)


def _spelled(name: str, text: str) -> str:
    """Here, unlike in files, whatever is not true is false: so Pulsar does it, and its clients' tests count on it."""
    is_odd = FIELDS[name].type is bool and text.strip().lower() not in ("true", "false")
    if is_odd:
        log.warning("the dynamic setting %s is neither true nor false, and is read as false", name)
    return "false" if is_odd else text


def _decoded(value: bytes) -> dict[str, str]:
    return msgspec.json.decode(value, type=dict[str, str]) if value else {}
