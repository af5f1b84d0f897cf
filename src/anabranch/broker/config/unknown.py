"""Settings that a broker does not have: typos, settings of Pulsar's without meaning here, and others. Pure.

An operator who brings a `broker.conf` along must be able to see which settings have no effect. The file lists every
setting, so what matters is which ones were changed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.broker.config.sources import GivenSetting, folded

MISSED_TOLD = 20
OTHERS_TOLD = 5


@dataclass
class Sorted:
    warnings: list[str] = field(default_factory=list)
    unused: list[GivenSetting] = field(default_factory=list)  # Settings of Pulsar.
    missed: list[GivenSetting] = field(
        default_factory=list
    )  # The unused settings that differ from Pulsar's defaults.


def sort(strangers: Iterable[GivenSetting], known: Mapping[str, str]) -> Sorted:
    """Sorts unknown settings. `known` has the known names by their folded form. One warning for each typo, and one for
    each other kind."""
    # Imported only if an unknown setting was given.
    from anabranch.broker.config.pulsar_settings import SHIPPED

    shipped = {folded(name): values for name, values in SHIPPED.items()}
    found = Sorted()
    others: list[GivenSetting] = []
    for given in strangers:
        key = folded(given.key)
        if key in shipped:
            found.unused.append(given)
            if not _is_as_shipped(given, shipped[key]):
                found.missed.append(given)
        elif near := difflib.get_close_matches(key, known, n=1, cutoff=0.8):
            found.warnings.append(
                f"unknown setting {given.key} in {given.origin}; did you mean {known[near[0]]}?"
            )
        else:
            others.append(given)
    if found.missed:
        found.warnings.append(f"set, but NOT obeyed by this broker, {_several(found.missed, MISSED_TOLD)}")
    untouched = [given for given in found.unused if given not in found.missed]
    if len(untouched) > OTHERS_TOLD:
        found.warnings.append(
            f"{len(untouched)} settings of Pulsar's, all as it ships them, mean nothing here; "
            "`anabranch config show --unused` lists them"
        )
    elif untouched:
        # The operator has written these few by hand.
        found.warnings.append(
            f"settings of Pulsar's that mean nothing here, {_several(untouched, OTHERS_TOLD)}"
        )
    if others:
        found.warnings.append(f"not a setting of this broker, {_several(others, OTHERS_TOLD)}")
    return found


def _is_as_shipped(given: GivenSetting, values: tuple[str, ...]) -> bool:
    text = str(given.value).strip().lower()
    return not text or text in (value.lower() for value in values)


def _several(found: list[GivenSetting], most: int) -> str:
    """The names of the settings, never their values: some are passwords."""
    origin = found[0].origin
    where = origin.where.rpartition(":")[0] if origin.kind == "file" and len(found) > 1 else origin.where
    names = ", ".join(given.key for given in found[:most])
    return f"in {where}: {names}" + (f" and {len(found) - most} more" if len(found) > most else "")
