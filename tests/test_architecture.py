"""The layering of the code, as a test: what each folder may import, and what pure code may not touch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "anabranch"

# Lower layers first. A module may import its own layer and those before it.
LAYERS = [
    "errors",
    "model",
    "autoscale",
    "wire",
    "columns",
    "metadata",
    "storage",
    "controller",
    "broker",
    "client",
    "spark",
    "blocking",
    "simulation",
    "pipelines",
    "cli",
]

PURE_FOLDERS = ["model", "autoscale", "wire"]
PURE_MODULES = [
    *(
        f"columns/{name}.py"
        for name in ("arrow", "decode", "decode_rows", "encode", "hashing", "memory", "pool")
    ),
    *(f"columns/{name}.py" for name in ("protobuf", "recut", "routing", "scan", "singles", "warmup")),
    "columns/compaction.py",
    *(f"broker/compaction/{name}.py" for name in ("entries", "index", "survey", "fast_survey")),
    "broker/cursor.py",
    "broker/dedup.py",
    "broker/hidden.py",
    "broker/policies.py",
    "broker/state.py",
    "broker/dispatch/selector.py",
    "broker/retention.py",
    "broker/scalable/history_records.py",
    "broker/scalable/membership.py",
    *(
        f"cli/demo/{name}.py"
        for name in ("clickstream", "colours", "past", "ran", "report", "river", "verify")
    ),
    "client/acks.py",
    "client/checkpoint.py",
    "client/chunks.py",
    "client/lanes.py",
    "client/redelivery.py",
    "client/topic_set.py",
    "client/vector.py",
    "client/window.py",
    "spark/choice.py",
    *(f"pipelines/{name}.py" for name in ("backtest_report", "load_history_schema", "outcomes", "replay")),
    *(f"pipelines/{name}.py" for name in ("svg", "synthetic", "trace")),
    *(f"pipelines/{name}.py" for name in ("compaction", "table_names", "table_schema")),
    "spark/offsets.py",
    "spark/option_values.py",
    "spark/options.py",
    "spark/pieces.py",
    "spark/plan.py",
    "spark/ranges.py",
    "spark/row_filter.py",
    "spark/rows.py",
    "spark/sink_columns.py",
    "spark/sink_options.py",
    "spark/spending.py",
    "storage/format.py",
    "storage/read_plan.py",
    "storage/spans.py",
    "storage/topic_record.py",
]
# Imported by functions only, with the first table. tests/unit/client/test_face.py sees that it stays so.
LOADED_LATE = {
    "broker/compaction/fast_survey.py",
    *("client/arrow_reader.py", "client/tables.py"),
    *(
        "spark/rows.py",
        "spark/row_filter.py",
        "spark/value_types.py",
        "spark/decoding.py",
        "spark/declared.py",
        "spark/encoding.py",
        "spark/key_values.py",
        "spark/protobuf_values.py",
    ),
}
IMPURE = {"asyncio", "logging", "os", "random", "secrets", "socket", "threading", "time", "uuid"}


def modules() -> list[Path]:
    return sorted(p for p in SOURCE.rglob("*.py") if "_pb2" not in p.name)


def imports(path: Path) -> Iterator[str]:
    """Names imported when the module is loaded or run, leaving out what only type checkers see."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "anabranch" else None


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_to_lower_layers_only(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    assert own in LAYERS, f"{own} has no place in the layering"
    above = set(LAYERS[LAYERS.index(own) + 1 :])
    wrong = [name for name in imports(path) if layer_of(name) in above]
    assert not wrong, f"{own} must not know of {wrong}"


@pytest.mark.parametrize(
    "path",
    [p for p in modules() if p.relative_to(SOURCE).parts[0] in PURE_FOLDERS]
    + [p for p in modules() if p.parent == SOURCE / "controller" / "core"]
    + [SOURCE / name for name in PURE_MODULES],
    ids=lambda p: str(p.relative_to(SOURCE)),
)
def test_pure_code_has_no_clock_no_chance_and_no_io(path: Path) -> None:
    touched = {name.split(".")[0] for name in imports(path)} & IMPURE
    assert not touched, f"pure code imports {sorted(touched)}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_column_kernels_load_numba_and_arrow(path: Path) -> None:
    if path.relative_to(SOURCE).parts[0] == "columns" or str(path.relative_to(SOURCE)) in LOADED_LATE:
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # What a function imports, it imports when it is called.
    loaded = {
        name
        for node in tree.body
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    slow = [
        name
        for name in loaded
        if name.split(".")[0] in {"numba", "pyarrow"} or name.startswith("anabranch.columns")
    ]
    assert not slow, f"{slow} take half a second to load: import them in the function that needs them"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8").strip()
    if text:
        assert ast.get_docstring(ast.parse(text)), "a module opens with what it decides and what it does not"
