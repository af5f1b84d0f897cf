"""Commands that are one request to the admin REST each, as tables: their arguments, their request, their output.

`{namespace}`, `{topic}` and every other name in braces in a path is the argument of that name, checked and quoted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from anabranch.admin.rest import path_part
from anabranch.cli.admin import scalable_rest
from anabranch.cli.admin.rest import RestRefused, call
from anabranch.cli.parsing.admin_options import declare_group
from anabranch.cli.render.answers import View, show
from anabranch.cli.render.done import said
from anabranch.model.names import Domain, NamespaceName, TopicName


@dataclass(frozen=True)
class Argument:
    """An argument as argparse declares it. `query` is its name behind the `?` of a path, if it goes there."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    query: str = ""

    @property
    def field(self) -> str:
        return self.names[-1].lstrip("-").replace("-", "_")


def arg(*names: str, query: str = "", **settings: Any) -> Argument:
    return Argument(names, settings, query)


def flag(name: str, query: str, help: str) -> Argument:
    return Argument((name,), {"action": "store_true", "help": help}, query)


WAIT_STEP_S = 0.1
# Policies that the owners of a scalable topic's segments follow, each for its segment.
OF_SEGMENTS = frozenset(
    f"set-{policy}"
    for policy in (
        "retention",
        "backlog-quota",
        "publish-rate",
        "dispatch-rate",
        "subscription-dispatch-rate",
        "max-producers-per-topic",
        "max-unacked-messages-per-consumer",
        "max-unacked-messages-per-subscription",
    )
)
WAIT = arg("--wait", type=float, metavar="S", help="give a broker that is starting so many seconds")
NAMESPACE = arg("namespace", metavar="TENANT/NAMESPACE", help="public/default, for instance")
TOPIC = arg(
    "topic",
    help="`t` is short for a topic of public/default, scalable if there is one of that name, else classic",
)


@dataclass(frozen=True)
class Request:
    name: str
    help: str
    method: str
    path: str  # The path below /admin/v2.
    arguments: Sequence[Argument] = ()
    body: Callable[[argparse.Namespace], Any] | None = None
    view: View | None = None
    # Whether an answer is a success; the exit code is 1 for others.
    is_good: Callable[[Any], bool] | None = None


def declare(parser: argparse.ArgumentParser, requests: Sequence[Request]) -> None:
    action = declare_group(parser)
    for request in requests:
        made = action(request.name, request.help)
        made.set_defaults(module="admin.requests", request=request)
        for argument in request.arguments:
            made.add_argument(*argument.names, **argument.settings)


def run(arguments: argparse.Namespace) -> int:
    request: Request = arguments.request
    body = None if request.body is None else request.body(arguments)
    path, found = _asked(request, arguments, body)
    each = path.startswith("/admin/v2/scalable/") and request.name in OF_SEGMENTS
    done = (
        "not set: the broker decides"
        if request.method == "GET"
        else said(request.name, _subject(request, arguments)) + (", for each of its segments" if each else "")
    )
    show(found, is_json=arguments.json, view=request.view, done=done)
    return 0 if request.is_good is None or request.is_good(found) else 1


def _subject(request: Request, arguments: argparse.Namespace) -> str:
    """What a change is about: the names at the beginning of its command line."""
    names = [
        a.field
        for a in request.arguments
        if not a.names[0].startswith("-") and f"{{{a.field}}}" in request.path
    ]
    found = [str(getattr(arguments, name)) for name in names]
    return " ".join(text for text in found if text)


def _asked(request: Request, arguments: argparse.Namespace, body: Any) -> tuple[str, Any]:
    """Sends the request and returns its path and the answer; with --wait it retries while the broker is starting."""
    deadline = time.monotonic() + (getattr(arguments, "wait", None) or 0.0)
    while True:
        try:
            path = path_of(request, arguments)
            return path, call(arguments.admin_url, request.method, path, body)
        except RestRefused as refused:
            # 0: no connection; 503: the broker says that it is not ready.
            if refused.status not in (0, 503) or time.monotonic() > deadline:
                raise
            time.sleep(WAIT_STEP_S)


def path_of(request: Request, arguments: argparse.Namespace) -> str:
    given = {argument.field: getattr(arguments, argument.field) for argument in request.arguments}
    url = arguments.admin_url
    named = {name: value for name, value in given.items() if f"{{{name}}}" in request.path}
    path = request.path.format(**{name: _quoted(name, value, url) for name, value in named.items()})
    query = [
        (argument.query, str(value).lower() if isinstance(value, bool) else value)
        for argument in request.arguments
        if argument.query and (value := given[argument.field]) not in (None, False)
    ]
    return f"/admin/v2{path}" + (f"?{urlencode(query)}" if query else "")


def topic_path(text: str, url: str) -> str:
    """The path below /admin/v2 of the topic that a user calls `text`."""
    name = TopicName.parse(text)
    if name.domain is Domain.TOPIC or ("://" not in text and scalable_rest.exists(url, name)):
        return scalable_rest.rest_path(name).removeprefix("/admin/v2/")
    return name.rest_path


def _quoted(name: str, value: Any, url: str) -> str:
    if name == "namespace":
        return str(NamespaceName.parse(value))
    if name == "topic":
        return topic_path(value, url)
    if name == "schema_topic":
        return TopicName.parse(value).schema_path
    if name in ("version", "subscription", "bundle"):  # An optional part of the path.
        return "" if value is None else "/" + path_part(str(value))
    if name == "value":
        # Pulsar's own client encodes values of settings twice, and brokers decode them twice.
        value = quote(str(value), safe="")
    return path_part(str(value))
