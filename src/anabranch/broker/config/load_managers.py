"""Who owns bundles, and where their states are kept: the values of two settings, which are names of Pulsar's classes or
ours. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# A hash over the living brokers; or the load balancer of PIP-192.
SIMPLE: Final = "simple"
BALANCED: Final = "balanced"
_MANAGERS: Final[Mapping[str, str]] = {
    SIMPLE: SIMPLE,
    BALANCED: BALANCED,
    "NoopLoadManager": SIMPLE,
    "SimpleLoadManagerImpl": SIMPLE,
    "ModularLoadManagerImpl": SIMPLE,
    "ExtensibleLoadManagerImpl": BALANCED,
}

# In a topic that the leader owns; or in the metadata store.
TOPIC: Final = "topic"
METADATA: Final = "metadata"
_CHANNELS: Final[Mapping[str, str]] = {
    TOPIC: TOPIC,
    METADATA: METADATA,
    "ServiceUnitStateTableViewImpl": TOPIC,
    "ServiceUnitStateMetadataStoreTableViewImpl": METADATA,
}


def load_manager(text: str) -> str:
    """`simple` or `balanced`. ValueError for a class that is not known."""
    return _named(text, _MANAGERS)


def state_channel(text: str) -> str:
    """`topic` or `metadata`. ValueError for a class that is not known."""
    return _named(text, _CHANNELS)


def _named(text: str, names: Mapping[str, str]) -> str:
    """Classes are named with or without their package, and in whatever case, as other words of settings are."""
    last = str(text).strip().rpartition(".")[2].lower()
    for name, meant in names.items():
        if name.lower() == last:
            return meant
    raise ValueError(f"expected one of {', '.join(names)}")
