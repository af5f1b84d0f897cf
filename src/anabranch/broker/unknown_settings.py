"""Settings that a broker does not have: slips, settings of Pulsar's that mean nothing here, and others. Pure.

Whoever brings a `broker.conf` along must be able to see what of it is not obeyed. The file lists everything there is,
so what matters is what somebody has changed in it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.broker.config_files import Given, folded

MISSED_TOLD = 20
OTHERS_TOLD = 5


@dataclass
class Sorted:
    warnings: list[str] = field(default_factory=list)
    unused: list[Given] = field(default_factory=list)  # Of Pulsar.
    missed: list[Given] = field(default_factory=list)  # Those of them that are not as Pulsar ships them.


def sort(strangers: Iterable[Given], known: Mapping[str, str]) -> Sorted:
    """`known` has the names that there are, by their folded form. A line for each slip, one for each other kind."""
    # Loaded only if somebody has set something that we do not know.
    from anabranch.broker.pulsar_settings import SHIPPED

    shipped = {folded(name): values for name, values in SHIPPED.items()}
    found = Sorted()
    others: list[Given] = []
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
        # Somebody has written these few himself.
        found.warnings.append(
            f"settings of Pulsar's that mean nothing here, {_several(untouched, OTHERS_TOLD)}"
        )
    if others:
        found.warnings.append(f"not a setting of this broker, {_several(others, OTHERS_TOLD)}")
    return found


def _is_as_shipped(given: Given, values: tuple[str, ...]) -> bool:
    text = str(given.value).strip().lower()
    return not text or text in (value.lower() for value in values)


def _several(found: list[Given], most: int) -> str:
    """Their names, never their values: some are passwords."""
    origin = found[0].origin
    where = origin.where.rpartition(":")[0] if origin.kind == "file" and len(found) > 1 else origin.where
    names = ", ".join(given.key for given in found[:most])
    return f"in {where}: {names}" + (f" and {len(found) - most} more" if len(found) > most else "")
