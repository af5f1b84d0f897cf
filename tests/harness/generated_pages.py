"""docs/settings.md and docs/metrics.md, as the code has them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anabranch.broker.config import balancer, config
from anabranch.broker.config.config import FIELDS, BrokerConfig, allowed
from anabranch.broker.config.spelling import spelled
from anabranch.broker.observe import metric_names

DOCS = Path(__file__).parents[2] / "docs"
_WRITTEN_BY = "`REWRITE_PAGE=1 .venv/bin/pytest tests/test_generated_pages.py`"
_OF_SETTINGS = f"""
Made from the code; {_WRITTEN_BY} writes it. A setting is a line of
the file given by `--config` (`name=value`, or TOML), a variable (`ANABRANCH_name`), or an option (`--set name=value`);
later ones win. `anabranch config show` prints those in force and where each comes from. 0 means "no limit" where a
limit is counted, as in Pulsar. A setting of Pulsar's that is not here has no meaning here, and is reported.
"""
_OF_METRICS = f"""
Made from the code; {_WRITTEN_BY} writes it. `/metrics` serves them
for Prometheus. Names that begin with `pulsar_` are Pulsar's, and mean the same but for what [figures.md](figures.md)
says: messages are counted, not entries. Labels are `cluster`, and as far as they apply `namespace`, `topic`, `segment`
(of a scalable topic, whose name is then the `topic`) and `subscription`. A histogram has `_bucket`, `_sum` and
`_count`.
"""
_SECTION = re.compile(r"    # -- (.+)")


def _told(cls: type) -> Iterator[tuple[str, str, str]]:
    """Section, name and comment of each field of a class of settings, in order.

    The comment is above the field. One that comes after others that have none is theirs as well."""
    path = Path(str((config if cls is BrokerConfig else balancer).__file__))
    source = path.read_text(encoding="utf-8").splitlines()
    (tree,) = (
        node
        for node in ast.parse("\n".join(source)).body
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )
    section = ""
    last = tree.body[0].end_lineno or tree.lineno
    for node in tree.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        comment: list[str] = []
        for line in source[last : node.lineno - 1]:
            if found := _SECTION.fullmatch(line):
                section, comment = found[1], []
            elif line.strip().startswith("#"):
                comment.append(line.strip(" #"))
        last = node.end_lineno or node.lineno
        yield section, spelled(node.target.id), " ".join(comment)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return f"`{value}`" if value != "" else ""


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text.strip(), 130, break_long_words=False, break_on_hyphens=False)


def settings_page() -> str:
    lines = [
        "# Every setting",
        "",
        *_paragraph(_OF_SETTINGS),
    ]
    section = ""
    defaults = config.BrokerConfig().spelled()
    for title, name, comment in (*_told(BrokerConfig), *_told(balancer.BalancerConfig)):
        if title != section:
            section = title
            lines += [
                "",
                f"## {title[0].upper()}{title[1:]}",
                "",
                "| setting | default | values | |",
                "|---|---|---|---|",
            ]
        told = comment.replace("|", "\\|")
        lines.append(f"| `{name}` | {_shown(defaults[name])} | {allowed(name)} | {told} |")
    return "\n".join(lines) + "\n"


_GROUPS = {
    "_TOPICS": "Topics (or namespaces, with `exposeTopicLevelMetricsInPrometheus=false`)",
    "_UPKEEP": "Upkeep of topics",
    "_SUBSCRIPTIONS": "Subscriptions and segments",
    "_CLIENTS": "Single producers and consumers (only if the settings ask for them)",
    "_BROKER": "The broker",
    "_LOG": "Its log",
    "_SCALABLE": "Scaling",
    "_BALANCER": "The load balancer of several brokers",
    "_TABLES": "Topics as tables, from the broker that their writer reports to",
}


def metrics_page() -> str:
    lines = [
        "# Every metric",
        "",
        *_paragraph(_OF_METRICS),
    ]
    for group, title in _GROUPS.items():
        lines += ["", f"## {title}", "", "| metric | kind | |", "|---|---|---|"]
        for name, metric in getattr(metric_names, group).items():
            lines.append(f"| `{name}` | {metric.kind} | {metric.help} |")
    return "\n".join(lines) + "\n"


def fields() -> set[str]:
    return set(FIELDS)


PAGES = {DOCS / "settings.md": settings_page, DOCS / "metrics.md": metrics_page}
