"""The checklists under `docs/checklists`, and the list of faults: every line names tests, and each of them exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHECKLISTS = sorted((ROOT / "docs" / "checklists").glob("*.md"))
CLAIM = re.compile(r"^- (?P<text>.+(?:\n  .+)*)", re.MULTILINE)
NAMED = re.compile(r"`(?P<path>[^`\s]+)::(?P<name>\w+)(?:\[(?P<case>[^\]`]+)\])?`")


def claims(checklist: Path) -> list[str]:
    return [found["text"] for found in CLAIM.finditer(checklist.read_text(encoding="utf-8"))]


@cache
def known_in(path: Path) -> frozenset[str]:
    """Names of the tests in a file, which is not imported. In Java, of the methods that are put up as claims.

    A state machine is a test by the name that its `TestCase` is given.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".java":
        return frozenset(re.findall(r"claims\.put\([^;]*?\b(?:this::|-> )(\w+)", text))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(text)
    tests = {
        node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name.startswith("test_")
    }
    machines = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "TestCase"
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.startswith("Test")
    }
    return frozenset(tests | machines)


def has_case(path: Path, case: str) -> bool:
    """Whether a case of a parametrized test is there: as a string in the file, or as a scenario."""
    return f'"{case}"' in path.read_text(encoding="utf-8") or (
        path.name == "test_scenarios.py" and (ROOT / "tests" / "scenarios" / f"{case}.txt").exists()
    )


def faults(text: str) -> list[str]:
    """What is wrong with one claim."""
    named = list(NAMED.finditer(text))
    if not named:
        return ["names no test"]
    wrong = []
    for test in named:
        path, name, case = ROOT / test["path"], test["name"], test["case"]
        if not path.exists() or name not in known_in(path) or (case and not has_case(path, case)):
            wrong.append(f"there is no {test[0]}")
    return wrong


@pytest.mark.parametrize("checklist", CHECKLISTS, ids=lambda path: path.stem)
def test_every_claim_names_tests_that_exist(checklist: Path) -> None:
    found = {text.partition("\n")[0]: wrong for text in claims(checklist) if (wrong := faults(text))}
    assert not found


@pytest.mark.parametrize("checklist", CHECKLISTS, ids=lambda path: path.stem)
def test_a_checklist_is_read_to_its_end(checklist: Path) -> None:
    text = checklist.read_text(encoding="utf-8")
    assert len(claims(checklist)) == text.count("\n- ") > 10
    assert sum(len(NAMED.findall(claim)) for claim in claims(checklist)) == text.count("::")


@pytest.mark.parametrize(
    "text",
    [
        "A claim without a test.",
        "A file that is not there.\n  `tests/test_nothing.py::test_every_claim_names_tests_that_exist`",
        "A test that is not there.\n  `tests/test_checklists.py::test_that_is_not_there`",
        "A helper is no test.\n  `tests/test_checklists.py::faults`",
        "A scenario that is not there.\n  "
        "`tests/unit/controller/core/test_scenarios.py::test_the_controller_does_what_the_scenario_says[none]`",
        "A state machine that is not run.\n  "
        "`tests/unit/broker/dispatch/test_entry_buckets_machine.py::SharedSegment`",
        "A Java method that no claim calls.\n  `interop/src/main/java/anabranch/interop/AdminClaims.java::take`",
    ],
)
def test_a_claim_without_tests_is_found(text: str) -> None:
    assert len(faults(text)) == 1


def test_there_are_checklists() -> None:
    assert CHECKLISTS


def test_every_fault_of_the_list_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    listed = text.partition("## Faults found by attack")[2].partition("\n## ")[0]
    rows = [row for row in listed.splitlines() if re.match(r"\| [A-Z]+\d", row)]
    assert len(rows) > 30
    assert {row.split("|")[1].strip(): wrong for row in rows if (wrong := faults(row))} == {}


def test_what_newcomers_met_has_a_row_for_each() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = {found[1] for found in re.finditer(r"^\| (A\d+) \|", text, re.MULTILINE)}
    assert rows == {f"A{number}" for number in range(1, 19)}
