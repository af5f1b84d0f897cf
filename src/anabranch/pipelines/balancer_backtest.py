"""Backtests of the load balancer on Spark: each cluster is replayed under each policy by a task of its own.

The decisions for one cluster follow from each other, so a replay is one task; clusters and policies go side by side.
Synthetic clusters are made where they are replayed. A recorded cluster is one trace, which goes to the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from anabranch.balance.core.settings import BalanceSettings
from anabranch.broker.scalable.load.balance_records import (
    BrokerReported,
    BundleMoved,
    BundleSample,
    BundlesMeasured,
    MoveMade,
    ShedMade,
)
from anabranch.broker.scalable.load.history_records import VERSION, HistoryRecord
from anabranch.pipelines.clusters.cluster_outcome import ClusterOutcome, cluster_outcome, series
from anabranch.pipelines.clusters.cluster_replay import replay_cluster
from anabranch.pipelines.clusters.cluster_trace import ClusterTrace
from anabranch.pipelines.clusters.replayed_cluster import ClusterTiming
from anabranch.pipelines.clusters.synthetic_clusters import ClusterSpec, made_cluster
from anabranch.pipelines.replay.trace import BadTrace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

_TYPES: Final = {"int": "bigint", "float": "double", "str": "string", "bool": "boolean"}
MOVE: Final = {
    "at": "timestamp",
    **dict.fromkeys(("bundle", "source", "destination", "reason", "because"), "string"),
    "topics": "bigint",
    "load": "double",
    "is_swap": "boolean",
}
SPLIT: Final = {
    "at": "timestamp",
    **dict.fromkeys(("bundle", "broker", "because"), "string"),
    "parts": "array<string>",
}
POINT: Final = {
    "at": "timestamp",
    **dict.fromkeys(("std", "mean", "worst"), "double"),
    "over": "bigint",
}
_LISTS: Final = {"move_list": MOVE, "split_list": SPLIT, "series": POINT}
_FIGURES: Final = {one.name: _TYPES[str(one.type)] for one in fields(ClusterOutcome)}
_ROW: Final = {
    **{"cluster": "string", "kind": "string", "policy": "string", "brokers": "bigint", "bundles": "bigint"},
    **_FIGURES,
}
CLUSTER_SCHEMA: Final = ", ".join(
    [
        *(f"{name} {kind}" for name, kind in _ROW.items()),
        *(
            f"{name} array<struct<{','.join(f'{one}:{kind}' for one, kind in inner.items())}>>"
            for name, inner in _LISTS.items()
        ),
    ]
)


@dataclass(frozen=True)
class BalancerPlan:
    """The settings that every cluster is replayed with; None is the placement by hash, without a balancer."""

    policies: Mapping[str, BalanceSettings | None]
    timing: ClusterTiming = field(default_factory=ClusterTiming)


def judged_cluster(trace: ClusterTrace, policy: str, plan: BalancerPlan) -> dict[str, Any]:
    """Replays one cluster under one policy; returns its row."""
    found = replay_cluster(trace, plan.policies[policy], plan.timing)
    return {
        "cluster": trace.name,
        "kind": trace.kind,
        "policy": policy,
        "brokers": len(trace.living[0][1]),
        "bundles": len(trace.bundles),
        **asdict(cluster_outcome(found, plan.timing)),
        "move_list": [_timed(one, MOVE) for one in found.moves],
        "split_list": [_timed(one, SPLIT) for one in found.splits],
        "series": [_timed(one, POINT) for one in series(found.points)],
    }


def _timed(one: Any, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: one.at_ms * 1_000 if name == "at" else getattr(one, name) for name in names}


# -- in tasks


def replayed_clusters(
    clusters: Sequence[ClusterSpec | ClusterTrace], plan: BalancerPlan
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` over numbers: one for each cluster and policy."""
    names = list(plan.policies)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                at, policy = divmod(number, len(names))
                chosen = clusters[at]
                trace = made_cluster(chosen) if isinstance(chosen, ClusterSpec) else chosen
                row = judged_cluster(trace, names[policy], plan)
                yield from pa.Table.from_pylist([row], schema=cluster_arrow_schema()).to_batches()

    return run


def cluster_arrow_schema() -> pa.Schema:
    """`CLUSTER_SCHEMA` as an Arrow schema."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
        "array<string>": pa.list_(pa.string()),
    }
    lists = [
        (name, pa.list_(pa.struct([(one, kinds[kind]) for one, kind in inner.items()])))
        for name, inner in _LISTS.items()
    ]
    return pa.schema([*((name, kinds[kind]) for name, kind in _ROW.items()), *lists])


# -- on the driver


def over_clusters(
    spark: SparkSession, clusters: Sequence[ClusterSpec | ClusterTrace], plan: BalancerPlan
) -> DataFrame:
    tasks = len(clusters) * len(plan.policies)
    return spark.range(0, tasks, 1, tasks).mapInArrow(replayed_clusters(clusters, plan), CLUSTER_SCHEMA)


def exploded(rows: DataFrame, column: str) -> DataFrame:
    """One row for each move, split or point."""
    from pyspark.sql import functions as f

    one = rows.select("cluster", "policy", f.explode(column).alias("one"))
    return one.select("cluster", "policy", "one.*")


# -- load history


def balancer_records(spark: SparkSession, path: str) -> list[HistoryRecord]:
    """The balancer's records in the tables that `load-history` has written, in the order of their times. At the same
    moment a report comes before a decision, which may have seen it."""
    place = path.rstrip("/")
    found: list[tuple[int, int, HistoryRecord]] = []
    for rank, (table, made) in enumerate(_MADE.items()):
        if (rows := _rows(spark, f"{place}/{table}")) is not None:
            found += [(one.at, rank, one) for one in made(rows)]
    if not found:
        raise BadTrace(
            f"{path} has no records of a load balancer; `anabranch pipeline load-history` writes them"
        )
    return [one for _, _, one in sorted(found, key=lambda one: one[:2])]


def _rows(spark: SparkSession, path: str) -> list[dict[str, Any]] | None:
    from pyspark.errors import AnalysisException

    try:
        frame = spark.read.parquet(path)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
    rows: list[Row] = frame.selectExpr("*", "unix_millis(at) at_ms").collect()
    return [row.asDict(recursive=True) for row in rows]


def _fields(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in kind.__struct_fields__}


def _reports(rows: list[dict[str, Any]]) -> Iterator[HistoryRecord]:
    for row in rows:
        top = tuple(BundleSample(**_fields(BundleSample, one)) for one in row["top"])
        told = BrokerReported(**{**_fields(BrokerReported, row), "top": top})
        yield HistoryRecord(VERSION, row["leader"], row["at_ms"], broker_load=told)


def _measured(rows: list[dict[str, Any]]) -> Iterator[HistoryRecord]:
    held: dict[tuple[int, str], list[BundleSample]] = {}
    for row in rows:
        sample = BundleSample(**_fields(BundleSample, row))
        held.setdefault((row["at_ms"], row["broker"]), []).append(sample)
    for (at_ms, broker), bundles in sorted(held.items(), key=lambda one: one[0]):
        told = BundlesMeasured(0, 1, tuple(bundles))
        yield HistoryRecord(VERSION, broker, at_ms, bundle_loads=told)


def _moved(rows: list[dict[str, Any]]) -> Iterator[HistoryRecord]:
    for row in rows:
        told = BundleMoved(**_fields(BundleMoved, row))
        yield HistoryRecord(VERSION, row["leader"], row["at_ms"], moved=told)


def _sheds(rows: list[dict[str, Any]]) -> Iterator[HistoryRecord]:
    for row in rows:
        lists = {name: tuple(row[name]) for name in ("brokers", "unowned", "failed")}
        moves = tuple(MoveMade(**one) for one in row["moves"])
        told = ShedMade(**{**_fields(ShedMade, row), **lists, "moves": moves})
        yield HistoryRecord(VERSION, row["leader"], row["at_ms"], shed=told)


_MADE: Final[Mapping[str, Callable[[list[dict[str, Any]]], Iterator[HistoryRecord]]]] = {
    "broker_loads": _reports,
    "bundle_loads": _measured,
    "moves": _moved,
    "sheds": _sheds,
}
