"""What brokers' loads are expected to be, with the bundles that they were given since they reported. Pure.

Loads are reported at intervals. Without this, many bundles that are assigned within one interval would all go to the
broker that was least loaded at its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.balance.core.assign import BUNDLE_LOAD_MIN
from anabranch.balance.core.load import BrokerLoad


def given_since(
    reported: Mapping[str, BrokerLoad], given_ms: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    """When each broker with a report was given bundles, without what its report already shows."""
    return {
        broker: [at_ms for at_ms in given_ms.get(broker, ()) if at_ms >= load.measured_ms]
        for broker, load in reported.items()
    }


def expected_loads(
    reported: Mapping[str, BrokerLoad], given_ms: Mapping[str, Sequence[int]]
) -> dict[str, BrokerLoad]:
    """The reports, in which each bundle of `given_since` counts with the mean load of a bundle."""
    bundles = sum(one.bundles for one in reported.values())
    mean = sum(one.load for one in reported.values()) / bundles if bundles else 0.0
    each = max(BUNDLE_LOAD_MIN, mean)
    found = dict(reported)
    for broker, since in given_ms.items():
        if since and (load := reported.get(broker)) is not None:
            more = len(since)
            found[broker] = replace(load, load=load.load + more * each, bundles=load.bundles + more)
    return found
