"""The pages of docs/client do what they say: their Python blocks run in order against a real broker process."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import anabranch
from harness.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

PAGES = sorted((Path(__file__).parents[2] / "docs" / "client").glob("*.md"))
WITHIN_S = 60.0
_BLOCK = re.compile(r"^```(python|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """Kind, text and line of each block."""
    text = page.read_text(encoding="utf-8")
    return [(found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in _BLOCK.finditer(text)]


def here(source: str, broker: BrokerProcess) -> str:
    """The source, for a broker on other ports than the usual ones."""
    source = source.replace("localhost:6650", f"127.0.0.1:{broker.port}")
    return source.replace("localhost:8080", f"127.0.0.1:{broker.http_port}")


async def run(source: str, where: str, names: dict[str, Any]) -> str:
    """What the source prints. It may await at its top level, as in `python -m asyncio`."""
    code = compile(source, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        running = eval(code, names)
        if inspect.isawaitable(running):
            await running
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_the_page_runs_and_prints_what_it_says(
    page: Path, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A module like any other: dataclasses look their annotations up in it.
    program = ModuleType(f"docs_client_{page.stem}")
    monkeypatch.setitem(sys.modules, program.__name__, program)
    names = vars(program)
    printed = ""
    try:
        async with asyncio.timeout(WITHIN_S):
            for kind, text, line in blocks(page):
                where = f"{page.name}:{line}"
                if kind == "python":
                    assert not printed, f"the block before {where} prints, and the page does not show it"
                    printed = await run(here(text, broker), where, names)
                else:
                    assert printed == text, where
                    printed = ""
    finally:
        for left in list(names.values()):
            if isinstance(left, anabranch.Client):
                await left.close()


def test_every_public_name_is_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in anabranch.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
