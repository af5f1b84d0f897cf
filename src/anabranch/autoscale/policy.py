"""The policy of automatic split and merge: its fields and defaults, overrides, and what makes one invalid. Pure.

A topic's override takes precedence over its namespace's, and that over the broker's configuration, field by field.
Overrides have the JSON of Pulsar's `AutoScalePolicyOverride`, which is also how they are stored.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final

from anabranch.autoscale.load import RATES, Load
from anabranch.errors import AnabranchError

MEGABYTE: Final = 1_000_000
# The largest number that JSON and a float can both have.
NUMBER_MAX: Final = sys.float_info.max
BROKER: Final = "broker"
NAMESPACE: Final = "namespace"
TOPIC: Final = "topic"

# The limits are far enough apart that segments just merged are not about to split again.
SPLIT_OVER: Final = Load(10_000.0, 50.0 * MEGABYTE, 50_000.0, 250.0 * MEGABYTE)
MERGE_UNDER: Final = Load(1_000.0, 5.0 * MEGABYTE, 5_000.0, 25.0 * MEGABYTE)


class InvalidPolicy(AnabranchError):
    """An override that cannot be read, or a policy that contradicts itself; the message says what to change."""

    code = 22  # NotAllowedError
    status: ClassVar[int] = 412


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """The operator's settings that `decide` needs. Valid exactly if it has no `problems`."""

    enabled: bool = True
    max_segments: int = 64
    min_segments: int = 1
    # The most merges along one lineage. Above MERGE_TIMES_MAX, the merges that a segment remembers, there is no limit.
    max_dag_depth: int = 10
    split_cooldown_ms: int = 60_000
    merge_cooldown_ms: int = 300_000
    merge_window_ms: int = 300_000
    split: Load = SPLIT_OVER
    merge: Load = MERGE_UNDER
    # A merge longer ago than this no longer counts for the depth. Our own field, set for the broker only.
    merge_depth_window_ms: int = 24 * 3_600_000
    # Between two changes of the number of entry buckets, and how long buckets must be unneeded to be given back.
    rebucket_cooldown_ms: int = 60_000
    rebucket_idle_window_ms: int = 1_800_000

    def to_json(self) -> dict[str, Any]:
        """Every field under its name in an override, and `mergeDepthWindowSeconds`."""
        value: dict[str, Any] = {
            "enabled": self.enabled,
            "maxSegments": self.max_segments,
            "minSegments": self.min_segments,
            "maxDagDepth": self.max_dag_depth,
            "splitCooldownSeconds": _seconds(self.split_cooldown_ms),
            "mergeCooldownSeconds": _seconds(self.merge_cooldown_ms),
            "mergeWindowSeconds": _seconds(self.merge_window_ms),
            "rebucketCooldownSeconds": _seconds(self.rebucket_cooldown_ms),
            "rebucketIdleWindowSeconds": _seconds(self.rebucket_idle_window_ms),
        }
        for kind, limits in (("split", self.split), ("merge", self.merge)):
            for name, limit in zip(RATES, limits.rates, strict=True):
                value[_threshold(kind, name)] = limit
        value[DEPTH_WINDOW] = _seconds(self.merge_depth_window_ms)
        return value

    @staticmethod
    def of_json(value: Mapping[str, Any]) -> ScalePolicy:
        """Reads the output of `to_json`. KeyError for anything else."""

        def limits(kind: str) -> Load:
            return Load(*(float(value[_threshold(kind, name)]) for name in RATES))

        return ScalePolicy(
            enabled=value["enabled"],
            max_segments=value["maxSegments"],
            min_segments=value["minSegments"],
            max_dag_depth=value["maxDagDepth"],
            split_cooldown_ms=round(value["splitCooldownSeconds"] * 1000),
            merge_cooldown_ms=round(value["mergeCooldownSeconds"] * 1000),
            merge_window_ms=round(value["mergeWindowSeconds"] * 1000),
            split=limits("split"),
            merge=limits("merge"),
            merge_depth_window_ms=round(value[DEPTH_WINDOW] * 1000),
            # Absent in what was recorded before there were rebuckets.
            rebucket_cooldown_ms=round(value.get("rebucketCooldownSeconds", 60) * 1000),
            rebucket_idle_window_ms=round(value.get("rebucketIdleWindowSeconds", 1_800) * 1000),
        )


DEPTH_WINDOW: Final = "mergeDepthWindowSeconds"
# The fields of an override that are times in seconds.
TIMES: Final = (
    "split_cooldown",
    "merge_cooldown",
    "merge_window",
    "rebucket_cooldown",
    "rebucket_idle_window",
)


def _seconds(ms: int) -> int | float:
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def _threshold(kind: str, rate: str) -> str:
    return f"{kind}{rate[0].upper()}{rate[1:]}Threshold"


DEFAULT: Final = ScalePolicy()


@dataclass(frozen=True, slots=True)
class Override:
    """The fields that a topic or a namespace sets; None falls through to the next level."""

    enabled: bool | None = None
    max_segments: int | None = None
    min_segments: int | None = None
    max_dag_depth: int | None = None
    split_cooldown_seconds: int | None = None
    merge_cooldown_seconds: int | None = None
    merge_window_seconds: int | None = None
    split_msg_rate_in_threshold: float | None = None
    split_bytes_rate_in_threshold: int | None = None
    split_msg_rate_out_threshold: float | None = None
    split_bytes_rate_out_threshold: int | None = None
    merge_msg_rate_in_threshold: float | None = None
    merge_bytes_rate_in_threshold: int | None = None
    merge_msg_rate_out_threshold: float | None = None
    merge_bytes_rate_out_threshold: int | None = None
    # Our own, which Pulsar's class does not have: its clients pass over them.
    rebucket_cooldown_seconds: int | None = None
    rebucket_idle_window_seconds: int | None = None

    def encode(self) -> dict[str, Any]:
        """The JSON object, with the fields that are set."""
        return {
            name: value for name, field in FIELDS.items() if (value := getattr(self, field.name)) is not None
        }

    @staticmethod
    def decode(value: object) -> Override:
        """Reads a parsed JSON object. Unknown fields are ignored; InvalidPolicy for bad values."""
        if not isinstance(value, Mapping):
            raise InvalidPolicy(
                f'an automatic scaling policy is a JSON object such as {{"maxSegments": 16}}, not {value!r}'
            )
        return Override(
            **{
                field.name: field.read(name, found)
                for name, field in FIELDS.items()
                if (found := value.get(name)) is not None
            }
        )


@dataclass(frozen=True, slots=True)
class PolicyField:
    """One field of an override: its name in Python and what its JSON may hold."""

    name: str
    kind: type
    max: int = 0

    def read(self, label: str, value: object) -> Any:
        if self.kind is bool:
            if not isinstance(value, bool):
                raise InvalidPolicy(f"{label} is {value!r}; give true or false")
            return value
        # NaN is between no two numbers.
        is_number = isinstance(value, int | float) and -NUMBER_MAX <= value <= NUMBER_MAX
        if isinstance(value, bool) or not isinstance(value, int | float) or not is_number:
            raise InvalidPolicy(f"{label} is {value!r}; give a number, without quotes or a unit")
        if self.kind is float:
            return float(value)
        if value != int(value) or abs(value) > self.max:
            raise InvalidPolicy(f"{label} is {value!r}; give a whole number up to {self.max}")
        return int(value)


def _fields() -> Mapping[str, PolicyField]:
    """Each field under its JSON name. Counts are Java's Integer, times and byte rates are Java's Long."""
    found: dict[str, PolicyField] = {}
    for field in fields(Override):
        first, *words = field.name.split("_")
        label = first + "".join(word.capitalize() for word in words)
        if field.name == "enabled":
            found[label] = PolicyField(field.name, bool)
        elif "msg_rate" in field.name:
            found[label] = PolicyField(field.name, float)
        else:
            is_long = "bytes" in field.name or "seconds" in field.name
            found[label] = PolicyField(field.name, int, 2**63 - 1 if is_long else 2**31 - 1)
    return found


FIELDS: Final = _fields()


@dataclass(frozen=True, slots=True)
class Resolved:
    """The policy in force for one topic, and for each field (by its JSON name) the level it came from."""

    policy: ScalePolicy
    origin: Mapping[str, str]

    def to_json(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"value": value, "from": self.origin[name]} for name, value in self.policy.to_json().items()
        }


def resolve(broker: ScalePolicy, namespace: Override | None, topic: Override | None) -> Resolved:
    """Resolves each field: the topic's value, else the namespace's, else the broker's. The result may have
    `problems`."""
    policy = broker
    origin = dict.fromkeys((*FIELDS, DEPTH_WINDOW), BROKER)
    for level, override in ((NAMESPACE, namespace), (TOPIC, topic)):
        if override is not None:
            policy = _overlaid(policy, override)
            origin.update(dict.fromkeys(override.encode(), level))
    return Resolved(policy, origin)


def _overlaid(policy: ScalePolicy, override: Override) -> ScalePolicy:
    changed: dict[str, Any] = {}
    for name in ("enabled", "max_segments", "min_segments", "max_dag_depth"):
        if (value := getattr(override, name)) is not None:
            changed[name] = value
    for name in TIMES:
        if (value := getattr(override, f"{name}_seconds")) is not None:
            changed[f"{name}_ms"] = value * 1000
    for kind in ("split", "merge"):
        limits = {
            field.name: float(value)
            for field in fields(Load)
            if (value := getattr(override, f"{kind}_{field.name}_threshold")) is not None
        }
        if limits:
            changed[kind] = replace(getattr(policy, kind), **limits)
    return replace(policy, **changed) if changed else policy


# -- what makes a policy invalid


def problems(policy: ScalePolicy) -> list[str]:
    """The reasons why the policy cannot be used, a sentence each; empty if it is valid."""
    found: list[str] = []
    if policy.min_segments < 1:
        found.append(f"minSegments is {policy.min_segments}; it must be at least 1")
    if policy.min_segments > policy.max_segments:
        found.append(
            f"minSegments is {policy.min_segments} and maxSegments {policy.max_segments}; "
            "minSegments must not be above maxSegments"
        )
    if policy.max_dag_depth < 0:
        found.append(f"maxDagDepth is {policy.max_dag_depth}; it must not be negative (0 forbids merges)")
    for name, ms in (
        ("splitCooldownSeconds", policy.split_cooldown_ms),
        ("mergeCooldownSeconds", policy.merge_cooldown_ms),
        ("mergeWindowSeconds", policy.merge_window_ms),
        ("rebucketCooldownSeconds", policy.rebucket_cooldown_ms),
        ("rebucketIdleWindowSeconds", policy.rebucket_idle_window_ms),
        (DEPTH_WINDOW, policy.merge_depth_window_ms),
    ):
        if ms < 0:
            found.append(f"{name} is {_seconds(ms)}; it must not be negative")
    for name, split, merge in zip(RATES, policy.split.rates, policy.merge.rates, strict=True):
        found += _threshold_problems(name, split, merge)
    return found


def _threshold_problems(name: str, split: float, merge: float) -> list[str]:
    if not split > 0:
        return [f"{_threshold('split', name)} is {split:,.0f}; it must be above 0"]
    if not merge >= 0:
        return [f"{_threshold('merge', name)} is {merge:,.0f}; it must not be negative"]
    if not split > merge:
        return [
            f"{_threshold('split', name)} is {split:,.0f} and {_threshold('merge', name)} {merge:,.0f}; the split "
            "threshold must be above the merge threshold, or segments would be merged and split in turn"
        ]
    return []


def check(policy: ScalePolicy) -> None:
    """Raises InvalidPolicy with every problem, if there is one."""
    if found := problems(policy):
        raise InvalidPolicy("; ".join(found))
