"""One Chromium for all tests of the page; without one they are skipped, and say what to install."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.browser import Browser, Page, chromium

pytestmark = pytest.mark.browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    missing = chromium() is None
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if missing:
                reason = "no Chromium here: install one (Debian: apt-get install chromium) to test the page"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def opened(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    """Opens pages, and closes them behind the test. None may have complained unless the test says so."""
    pages: list[Page] = []

    def open(url: str, **options: object) -> Page:
        pages.append(browser.page(url, **options))
        return pages[-1]

    yield open
    shots = os.environ.get("ANABRANCH_SCREENSHOTS")
    complaints = []
    for number, page in enumerate(pages):
        if shots:
            page.screenshot(Path(shots) / f"{request.node.name}-{number}.png")
        complaints += page.complaints()
        page.close()
    if request.node.get_closest_marker("complains") is None:
        assert complaints == []
