"""`anabranch bundles`: which broker has each bundle of a namespace and why, and moves and splits by hand."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.cli.admin.requests import NAMESPACE, Request, arg, declare, flag
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.answers import lines, table
from anabranch.cli.render.explain import Clock

_PATH = "/namespaces/{namespace}{bundle}"
_BUNDLE = arg(
    "bundle", metavar="RANGE", help="a range of hashes, as `bundles list` shows it: 0x00000000_0x40000000"
)
_COLUMNS = {"BUNDLE": "bundle", "STATE": "state", "OWNER": "owner", "SINCE": "since", "REASON": "reason"}


def _listed(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return table([_row(one) for one in found], _COLUMNS, left={0, 1, 2, 3, 4})


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    owner = found.get("owner")
    if "source" in found or "destination" in found:
        owner = f"{found.get('source') or '-'} to {found.get('destination') or '-'}"
    since = found.get("since")
    clock = Clock(time.time_ns() // 1_000_000, None)
    return {**found, "owner": owner, "since": clock(since) if since else None}


def _explained(found: Mapping[str, Any]) -> list[str]:
    told = dict(_row(found))
    clock = Clock(told.pop("nowMs", time.time_ns() // 1_000_000), None)
    brokers, loads = told.pop("brokers", {}), told.pop("loads", {})
    past = [*map(_moved, told.pop("moves", ())), *map(_decided, told.pop("decisions", ()))]
    past += map(_decided, told.pop("general", ()))
    silent = told.pop("silent", ())
    return [
        *lines({name: value for name, value in told.items() if value is not None or name == "owner"}),
        "",
        *_past(past, clock),
        *([f"Not heard: {', '.join(silent)}", ""] if silent else []),
        *table(
            [
                {"broker": broker, "bundles": count, "load": _percent(loads.get(broker))}
                for broker, count in brokers.items()
            ],
            {"BROKER": "broker", "BUNDLES": "bundles"} | ({"LOAD": "load"} if loads else {}),
            left={0},
        ),
    ]


def _percent(load: Mapping[str, float] | None) -> str | None:
    return None if load is None else f"{100 * load['load']:.0f} %"


def _moved(move: Mapping[str, Any]) -> tuple[int, str]:
    ways = " to ".join(one for one in (move["from"], move["to"]) if one)
    state = "under way" if move["endedMs"] is None else move["state"]
    return move["beganMs"], f"{move['kind']} {ways} ({state}): {move['reason']}"


def _decided(decision: Mapping[str, Any]) -> tuple[int, str]:
    subject = f" of {decision['subject']}" if "subject" in decision else ""
    word = "decided" if decision["isDone"] else "no"
    times = f", {decision['times']:,} times" if decision["times"] > 1 else ""
    return decision["untilMs"], f"{word} {decision['act']}{subject}{times}: {decision['because']}"


def _past(events: Sequence[tuple[int, str]], clock: Clock) -> list[str]:
    if not events:
        return []
    ordered = sorted(events, key=lambda event: event[0])
    return ["The last hour", *(f"  {clock(at_ms)}  {clock.within(text)}" for at_ms, text in ordered), ""]


def hashes(text: str) -> list[int]:
    """Places in the space of hashes, with commas between them: 0x20000000,0x30000000."""
    try:
        return [int(one, 16 if one.lower().startswith("0x") else 10) for one in text.split(",")]
    except ValueError:
        raise UsageError(f"--at: {text!r} is no list of hashes, as 0x20000000,0x30000000") from None


def _split_body(arguments: argparse.Namespace) -> list[int] | None:
    if arguments.at is None:
        return None
    if arguments.algorithm is None:
        arguments.algorithm = "specified_positions_divide"
    return hashes(arguments.at)


REQUESTS = (
    Request(
        "list",
        "show the bundles of a namespace: where each is, since when, and why",
        "GET",
        "/namespaces/{namespace}/bundleStates",
        (NAMESPACE,),
        view=_listed,
    ),
    Request(
        "explain",
        "show all that is known of one bundle",
        "GET",
        _PATH + "/explain",
        (NAMESPACE, _BUNDLE),
        view=_explained,
    ),
    Request(
        "transfer",
        "move a bundle to another broker, with its topics and their clients",
        "PUT",
        _PATH + "/unload",
        (
            NAMESPACE,
            _BUNDLE,
            arg("broker", query="destinationBroker", metavar="HOST:PORT", help="as `brokers list` names it"),
        ),
    ),
    Request(
        "unload",
        "close the topics of a bundle; with the load balancer any broker may get it next",
        "PUT",
        _PATH + "/unload",
        (NAMESPACE, _BUNDLE),
    ),
    Request(
        "split",
        "make several bundles of one",
        "PUT",
        _PATH + "/split",
        (
            NAMESPACE,
            arg(
                "bundle",
                metavar="RANGE",
                help="its range; or LARGEST (the one with the most topics), or HOT (with the most bytes a second)",
            ),
            arg(
                "--algorithm",
                query="splitAlgorithmName",
                metavar="NAME",
                help="as in Pulsar (default: in the middle)",
            ),
            arg("--at", metavar="HASH,…", help="where to cut: 0x20000000,0x30000000"),
            flag("--unload", "unload", "and move the parts to other brokers"),
        ),
        _split_body,
    ),
)


def declare_bundles(parser: argparse.ArgumentParser) -> None:
    declare(parser, REQUESTS)
