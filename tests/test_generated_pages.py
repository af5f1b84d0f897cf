"""Pages that are made from the code say what the code has, and the index of pages leads to every page."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from anabranch.broker.observe.metric_names import METRICS
from harness.generated_pages import DOCS, PAGES, fields

SOURCE = DOCS.parent / "src" / "anabranch"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_is_what_the_code_says(page: Path) -> None:
    written = PAGES[page]()
    if os.environ.get("REWRITE_PAGE"):
        page.write_text(written, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == written


def test_no_setting_and_no_metric_is_left_out() -> None:
    first_cell = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
    assert set(first_cell.findall((DOCS / "settings.md").read_text(encoding="utf-8"))) == fields()
    assert set(first_cell.findall((DOCS / "metrics.md").read_text(encoding="utf-8"))) == set(METRICS)


def test_the_index_leads_to_every_page_and_to_no_other() -> None:
    links = re.findall(r"\]\(([^)#]+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8"))
    assert [link for link in links if not (DOCS / link).is_file()] == []
    pages = {
        str(page.relative_to(DOCS)) for folder in (DOCS, DOCS / "client") for page in folder.glob("*.md")
    }
    pages |= {"benchmarks/README.md", "checklists", "decisions"} & set(links)
    assert pages - set(links) - {"README.md"} == set()


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:|#", link)]
    assert [link for link in links if not (page.parent / link.partition("#")[0]).exists()] == []


def test_every_error_that_is_explained_is_one_that_can_be_met() -> None:
    """Rows begin with what the program prints. `…` stands for what differs from case to case."""
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(quoted) > 15
    sources = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    # Texts that are broken over lines of the source.
    sources = re.sub(r'"\s*\n\s*f?"', "", sources)
    parts = [part.strip() for text in quoted for part in text.split("…") if part.strip()]
    assert [part for part in parts if part not in sources] == []
