"""The defaults that depend on how many brokers share a folder. What a user has set stays as it is. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from anabranch.broker.config.config import Loaded
from anabranch.broker.config.sources import SettingOrigin

BUNDLES: Final = "defaultNumberOfNamespaceBundles"
# A namespace keeps the bundles that it was created with, so that there are enough for a few more brokers, too.
BUNDLES_SHARED_MIN: Final = 64
BUNDLES_PER_BROKER_MIN: Final = 4


def shared_bundles(brokers: int) -> int:
    """How many bundles a new namespace gets where several brokers share it: a power of two, at least four for each
    broker. With as few as brokers, a single bundle with much load could not be given to a broker of its own."""
    found = BUNDLES_SHARED_MIN
    while found < BUNDLES_PER_BROKER_MIN * brokers:
        found *= 2
    return found


def for_brokers(found: Loaded, brokers: int) -> Loaded:
    """The settings of so many brokers."""
    if brokers == 1 or BUNDLES in found.origins:
        return found
    config = msgspec.structs.replace(
        found.config, default_number_of_namespace_bundles=shared_bundles(brokers)
    )
    origins = {**found.origins, BUNDLES: SettingOrigin("default", f"the default for {brokers} brokers")}
    return replace(found, config=config, origins=origins)
