"""The page on a broker that asks who somebody is: it asks in turn, keeps the answer in its tab, and sends it along."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jwt
import pytest

from harness.broker_process import BrokerProcess
from harness.browser import Page
from harness.secured import SECRET, TOKEN, Authority, Secured

Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def river(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("broker")
    made = Secured(folder, Authority(folder))
    users = folder / "users"
    # `openssl passwd -apr1 -salt abcdefgh secret`
    users.write_text("admin:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\n")
    made.settings |= {
        "authorizationEnabled": True,
        "superUserRoles": "admin",
        "basicAuthConf": users.as_uri(),
    }
    with made as started:
        started.put("scalable/public/default/orders")
        yield started


def ui(broker: BrokerProcess, path: str = "") -> str:
    return f"http://127.0.0.1:{broker.http_port}/ui{path}"


def sign_in(page: Page, **values: str) -> None:
    page.until("document.querySelector('.signin')")
    for name, value in values.items():
        page.evaluate(f"document.querySelector('#{name}').value = {value!r}")
    page.press(".signin .button")


@pytest.mark.complains
def test_a_token_opens_the_page_and_is_forgotten_when_asked_to(river: Secured, opened: Opened) -> None:
    page = opened(ui(river))
    page.shows("Who are you?")
    page.shows("show a token or give a user and password")
    sign_in(page)
    page.shows("Paste a token, or give a user and a password.")
    sign_in(page, token="nonsense")
    page.shows("the token cannot be read")
    sign_in(page, token=TOKEN)
    page.shows("orders")
    assert not any(TOKEN in url for url in page.requested())
    page.evaluate("location.hash = '#/topics/public/default/orders'")
    page.until("anabranch.page.river?.picture")
    page.press("#leave")
    page.shows("Who are you?")
    assert page.evaluate("sessionStorage.length") == 0


@pytest.mark.complains
def test_a_user_and_a_password_do_as_well(river: Secured, opened: Opened) -> None:
    page = opened(ui(river))
    sign_in(page, user="admin", password="secret")
    page.shows("orders")


@pytest.mark.complains
def test_a_role_without_rights_sees_no_topics(river: Secured, opened: Opened) -> None:
    page = opened(ui(river))
    sign_in(page, token=jwt.encode({"sub": "nobody"}, SECRET, "HS256"))
    page.shows("No topics yet")
    page.evaluate("location.hash = '#/topics/public/default/orders'")
    page.shows("The broker refused")
    page.shows("role 'nobody' may not administer topic://public/default/orders")
