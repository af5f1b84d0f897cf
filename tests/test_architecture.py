"""The layering of the code, as a test: what each folder may import, and what pure code may not touch."""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from import_graph import SOURCE, cycles, module_imports, modules, street_imports, street_of

# Lower layers first. A module may import its own layer and those before it.
LAYERS = [
    "version",
    "errors",
    "model",
    "autoscale",
    "balance",
    "wire",
    "columns",
    "metadata",
    "storage",
    "tables",
    "controller",
    "client",
    "admin",
    "broker",
    "supervisor",
    "spark",
    "table_writer",
    "blocking",
    "simulation",
    "pipelines",
    "cli",
]

PURE_FOLDERS = [
    "autoscale",
    "balance/core",
    "broker/state",
    "cli/demo/core",
    "columns",
    *(f"client/{name}/core" for name in ("acking", "consuming", "producing", "transport")),
    "controller/core",
    "model",
    "pipelines/clusters",
    "pipelines/replay",
    "pipelines/tables/core",
    "spark/columns",
    "spark/options",
    "spark/plan",
    "storage/core",
    "storage/object/core",
    "supervisor/core",
    "tables/core",
    "wire",
]
# Compiles the kernels around it, and keeps what it made in a folder of the user's.
COMPILER = "columns/jit.py"
PURE_MODULES = [
    *(f"broker/compaction/{name}.py" for name in ("entries", "index", "survey", "fast_survey")),
    "broker/policy/namespace.py",
    "broker/dispatch/selector.py",
    "broker/policy/retention.py",
    "broker/topic/phase.py",
    *(f"broker/scalable/load/{name}.py" for name in ("balance_records", "history_records")),
    "broker/scalable/watch/membership.py",
]
# Imported by functions only, with the first table. tests/unit/client/test_face.py sees that it stays so.
LOADED_LATE = {
    "broker/compaction/fast_survey.py",
    *("client/consuming/arrow_reader.py", "client/producing/tables.py", "client/tables/rows.py"),
    *(
        "spark/columns/rows.py",
        "spark/columns/row_filter.py",
        "spark/values/types.py",
        "spark/values/decode.py",
        "spark/values/analysed_schema.py",
        "spark/values/encode.py",
        "spark/values/key_values.py",
        "spark/values/protobuf.py",
    ),
    *(f"tables/core/{name}.py" for name in ("rows", "schema", "statistics")),
    *("tables/parquet.py", "tables/verify.py"),
    "table_writer/core/widening.py",
    *("table_writer/decoding.py", "table_writer/sealed.py", "table_writer/reading.py"),
}
IMPURE = {"asyncio", "logging", "os", "random", "secrets", "socket", "threading", "time", "uuid"}


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


def layer_of_path(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_to_lower_layers_only(path: Path) -> None:
    own = layer_of_path(path)
    if own == "__init__":
        return
    assert own in LAYERS, f"{own} has no place in the layering"
    above = set(LAYERS[LAYERS.index(own) + 1 :])
    wrong = [name for name in imports(path) if layer_of(name) in above]
    assert not wrong, f"{own} must not know of {wrong}"


@pytest.mark.parametrize(
    "path",
    [
        p
        for p in modules()
        if any(p.is_relative_to(SOURCE / folder) for folder in PURE_FOLDERS) and p != SOURCE / COMPILER
    ]
    + [SOURCE / name for name in PURE_MODULES],
    ids=lambda p: str(p.relative_to(SOURCE)),
)
def test_pure_code_has_no_clock_no_chance_and_no_io(path: Path) -> None:
    touched = {name.split(".")[0] for name in imports(path)} & IMPURE
    assert not touched, f"pure code imports {sorted(touched)}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_column_kernels_load_numba_and_arrow(path: Path) -> None:
    if layer_of_path(path) == "columns" or str(path.relative_to(SOURCE)) in LOADED_LATE:
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
        name for name in loaded if name.split(".")[0] in {"numba", "pyarrow"} or layer_of(name) == "columns"
    ]
    assert not slow, f"{slow} take half a second to load: import them in the function that needs them"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8").strip()
    if text:
        assert ast.get_docstring(ast.parse(text)), "a module opens with what it decides and what it does not"


def test_no_public_class_name_stands_for_two_ideas() -> None:
    """Of all modules but `blocking`, whose classes have the names of those they stand in for."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and path.stem != "blocking":
                found[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_a_position_is_of_an_entry_and_a_message_position_of_a_message() -> None:
    """Two tuples of different lengths under one name were the worst of them."""
    aliases = [
        str(path.relative_to(SOURCE))
        for path in modules()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == "Position"
    ]
    assert aliases == ["model/position.py"]


# Words that docs/glossary.md lists as not used, and its word for each: those whose text cannot mean anything else.
SYNONYMS = {
    "legacy topic": "classic topic",
    "legacy_topic": "classic_topic",
    "normal topic": "classic topic",
    "plain topic": "classic topic",
    "regular topic": "classic topic",
    "commit log": "WAL",
    "redo log": "WAL",
    "consumer group": "subscription",
    "segment map": "layout",
    "topology": "layout",
    "segmented topic": "scalable topic",
    "shard": "segment",
}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_word_of_the_glossary_has_no_synonyms(path: Path) -> None:
    # `legacy_topic_name` is a field of the protocol.
    text = path.read_text(encoding="utf-8").replace("legacy_topic_name", "")
    assert [word for word in SYNONYMS if word in text] == []


# Folders whose docstrings and comments are in plain sentences: to be extended, never shortened.
PLAIN = [
    "autoscale",
    "balance",
    "blocking.py",
    "broker",
    "cli",
    "client",
    "columns",
    "controller",
    "errors.py",
    "metadata",
    "model",
    "pipelines",
    "simulation",
    "spark",
    "storage",
    "supervisor",
    "table_writer",
    "tables",
    "wire",
]
ODD_WORDS = re.compile(
    r"\b(anew|whoever|whomever|somebody|nobody|has an end|taken in|by use|may nothing)\b", re.I
)
HEADLESS = {"Of", "Whoever", "Whose", "Nobody", "Somebody", "And", "But", "Also"}


def prose(path: Path) -> Iterator[str]:
    """The docstrings of a module, and its comments."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if any(path.is_relative_to(SOURCE / one) for one in PLAIN)],
    ids=lambda p: str(p.relative_to(SOURCE)),
)
def test_prose_is_plain(path: Path) -> None:
    """A subject, a verb, an object, and the usual word: "again" for "anew", "another broker" for "somebody"."""
    texts = list(prose(path))
    assert [text for text in texts if ODD_WORDS.search(text)] == []
    assert [text for text in texts if text.split(maxsplit=1)[:1] and text.split()[0] in HEADLESS] == []


PAGE = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
ANCHORS = sorted(set(re.findall(rf"`((?:{'|'.join(LAYERS)})\.[A-Za-z_.]+)`", PAGE)))


def names_in(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """What a module or class defines, and what that holds in turn."""
    found: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node.body if isinstance(node, ast.ClassDef) else []
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = []
    return found


@pytest.mark.parametrize("anchor", ANCHORS)
def test_the_page_names_what_is_there(anchor: str) -> None:
    parts = anchor.split(".")
    files = [SOURCE.joinpath(*parts[:end]).with_suffix(".py") for end in range(len(parts), 0, -1)]
    modules_named = [(path, len(path.relative_to(SOURCE).parts)) for path in files if path.exists()]
    if not modules_named:
        assert SOURCE.joinpath(*parts).is_dir(), f"{anchor} is no module"
        return
    path, length = modules_named[0]
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for name in parts[length:]:
        inside = names_in(body)
        assert name in inside, f"{anchor}: there is no {name}"
        body = inside[name]


def test_the_page_lists_the_layers_in_their_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == LAYERS


@pytest.mark.parametrize(
    "path", sorted((SOURCE.parents[1] / "docs" / "decisions").glob("0*.md")), ids=lambda p: p.stem
)
def test_a_decision_says_whether_it_is_in_force(path: Path) -> None:
    assert path.read_text(encoding="utf-8").split("\n")[2].startswith("Status: ")


IMPORTS = module_imports()
STREETS = street_imports(IMPORTS)


def test_no_folders_import_each_other_in_a_circle() -> None:
    assert cycles(STREETS) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycles(IMPORTS) == []


def test_only_whoever_runs_a_broker_knows_the_whole_of_it() -> None:
    """It builds the parts. A part that took the broker could use everything, and nobody could say what it needs."""
    streets = {street_of(name) for name, found in IMPORTS.items() if "anabranch.broker.broker" in found}
    runners = {"broker/server", *(street for street in streets if street.startswith("simulation/"))}
    assert streets - runners == set()


FOLDER_MODULES_MAX = 25


def folders() -> list[Path]:
    return sorted({path.parent for path in modules()})


def test_a_folder_holds_no_more_than_can_be_seen_at_a_glance() -> None:
    sizes = {str(folder.relative_to(SOURCE)): len(list(folder.glob("*.py"))) - 1 for folder in folders()}
    assert {name: size for name, size in sizes.items() if size > FOLDER_MODULES_MAX} == {}


@pytest.mark.parametrize("folder", folders(), ids=lambda p: str(p.relative_to(SOURCE.parent)))
def test_every_folder_says_in_a_sentence_what_belongs_in_it(folder: Path) -> None:
    told = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert told.partition("\n\n")[0].endswith(".")


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "client").rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_the_client_imports_from_the_modules_that_define_a_name(path: Path) -> None:
    faces = {"anabranch", "anabranch.client"}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wrong = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in faces
        for alias in node.names
        if not (SOURCE.parent / node.module.replace(".", "/") / alias.name).with_suffix(".py").exists()
        and not (SOURCE.parent / node.module.replace(".", "/") / alias.name).is_dir()
    ]
    wrong += [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in faces
    ]
    assert wrong == []


STREETS_OF_THE_PAGE = re.compile(r"(<!-- streets: begin[^\n]*-->\n)(.*?)(<!-- streets: end -->)", re.DOTALL)


def table_of_streets() -> str:
    """Every folder within a layer, in the order of the layers, with the sentence of its `__init__`."""

    def place(folder: Path) -> tuple[int, str]:
        return LAYERS.index(folder.relative_to(SOURCE).parts[0]), str(folder)

    rows = ["| folder | what belongs in it |", "|---|---|"]
    for folder in sorted((one for one in folders() if one != SOURCE), key=place):
        if len(folder.relative_to(SOURCE).parts) > 1:
            told = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
            sentence = " ".join(told.partition("\n\n")[0].split())
            rows.append(f"| `{folder.relative_to(SOURCE)}` | {sentence} |")
    return "\n".join(rows) + "\n"


def test_the_page_lists_the_streets_as_they_describe_themselves() -> None:
    if os.environ.get("REWRITE_PAGE"):
        page = SOURCE.parents[1] / "docs" / "architecture.md"
        written = STREETS_OF_THE_PAGE.sub(lambda found: found[1] + table_of_streets() + found[3], PAGE)
        page.write_text(written, encoding="utf-8")
        return
    shown = STREETS_OF_THE_PAGE.search(PAGE)
    assert shown is not None
    assert shown[2] == table_of_streets()


# Called on a broker's event loop only, with types that are found at run time.
TYPED_AT_RUN_TIME = {
    "broker/admin/across/owner_calls.py",
    "broker/admin/http/request.py",
    "broker/peers/handshake.py",
    "broker/policy/stored_json.py",
    "broker/ui/joined.py",
    "broker/ui/overview.py",
}
BUILT_IN = re.compile(r"(dict|list|tuple)\[(str|int|Any|bool|float|bytes|dict|list|tuple|[\[\], ])+\]")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_decoders_of_classes_are_made_when_their_module_is_loaded(path: Path) -> None:
    """msgspec looks at a class when it is decoded first, and two threads that do so at once end the process."""
    if str(path.relative_to(SOURCE)) in TYPED_AT_RUN_TIME:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            (".json.decode", ".msgpack.decode")
        ):
            for keyword in node.keywords:
                assert keyword.arg != "type" or BUILT_IN.fullmatch(ast.unparse(keyword.value)), ast.unparse(
                    node
                )
