"""`anabranch topics policy`: the settings of automatic splits and merges, for a topic or a namespace.

`tenant/namespace` names a namespace, anything else a topic.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from anabranch.cli.admin import scalable_rest
from anabranch.cli.admin.rest import call
from anabranch.cli.parsing.auto_scale_fields import BY_WORD, FIELDS, CommandField, parsed, shown
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.answers import show
from anabranch.cli.render.dag import aligned
from anabranch.cli.render.explain import switch
from anabranch.model.names import Domain, NamespaceName, TopicName


def run(arguments: argparse.Namespace) -> int:
    url: str = arguments.admin_url
    name, path = _target(arguments.target)
    match arguments.what:
        case "get":
            applied = call(url, "GET", f"{path}?applied=true")
            if arguments.json:
                print(json.dumps({"set": call(url, "GET", path) or {}, **applied}, indent=2))
            else:
                print("\n".join(told(name, applied)))
        case "set":
            _set(url, path, arguments)
        case "remove" if arguments.field:
            gone = {_field(word).name for word in arguments.field}
            left = {k: v for k, v in (call(url, "GET", path) or {}).items() if k not in gone}
            if left:
                call(url, "POST", path, left)
            else:
                call(url, "DELETE", path)
        case "remove":
            call(url, "DELETE", path)
    if arguments.what != "get":
        done = "policy set" if arguments.what == "set" else "policy removed"
        show(None, is_json=arguments.json, done=f"{name}: {done}")
    return 0


def _target(text: str) -> tuple[str, str]:
    """The full name and the path of its policy."""
    if "://" not in text and text.count("/") == 1:
        namespace = NamespaceName.parse(text)
        return str(namespace), f"/admin/v2/namespaces/{namespace}/scalableTopicAutoScalePolicy"
    name = TopicName.parse(text)
    if name.domain is Domain.PERSISTENT and "://" in text:
        raise UsageError(f"{name} is a classic topic; `anabranch topics migrate` makes it a scalable one")
    topic = TopicName(Domain.TOPIC, name.namespace, name.local)
    return str(topic), f"{scalable_rest.rest_path(topic)}/autoScalePolicy"


def _set(url: str, path: str, arguments: argparse.Namespace) -> None:
    given = {
        field.name: parsed(field, text)
        for field in FIELDS
        if (text := getattr(arguments, field.word.replace("-", "_"))) is not None
    }
    if not given:
        raise UsageError("nothing to set: name a field, as in --max-segments 8; --help lists them")
    call(url, "POST", path, {**(call(url, "GET", path) or {}), **given})


def _field(word: str) -> CommandField:
    found = BY_WORD.get(word.removeprefix("--"))
    if found is None:
        raise UsageError(f"{word!r} is no field of the policy; there are {', '.join(BY_WORD)}")
    return found


# -- output


def told(name: str, applied: dict[str, Any]) -> list[str]:
    """The policy as a table; the first line says whether it has any effect."""
    policy = applied["policy"]
    rows = [("FIELD", "VALUE", "FROM")]
    rows += [
        (f.word, shown(f, policy[f.name]["value"]), policy[f.name]["from"])
        for f in FIELDS
        if f.name in policy
    ]
    return [f"{name}: {switch(applied)}", "", *aligned(rows, left={0, 2})]
