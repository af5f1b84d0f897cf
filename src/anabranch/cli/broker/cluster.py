"""`anabranch cluster init|status`: makes a cluster in its stores, and shows its brokers as the stores have them.

Both go to the metadata store itself and need no broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from anabranch.cli.broker.member import check
from anabranch.cli.parsing.broker_options import declare_config_file, declare_stores, settings
from anabranch.cli.render.dag import aligned

if TYPE_CHECKING:
    from anabranch.broker.config.config import BrokerConfig


def declare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    init = actions.add_parser(
        "init",
        help="make a cluster in these stores",
        description="Makes what brokers expect to find: the folder in ZooKeeper, the folder of the log, and the "
        "names by which the two belong together. Run once, before the first broker; again, it changes nothing.",
    )
    status = actions.add_parser(
        "status",
        help="show the cluster's brokers",
        description="Shows the cluster's name, and the brokers that are registered now. The exit code is 1 if there "
        "are none.",
    )
    for made, action in ((init, "init"), (status, "status")):
        made.set_defaults(module="broker.cluster", action=action)
        declare_stores(made)
        declare_config_file(made)
        made.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    found = settings(arguments, is_member=True)
    if arguments.action == "init":
        check(found)
        made = asyncio.run(_init(found.config))
        print(json.dumps(made) if arguments.json else made["text"])
        if not found.config.zoo_keeper_auth_file:
            print(
                "anabranch: without zooKeeperAuthFile, everyone who reaches ZooKeeper can read and change what the "
                "brokers keep there, the secret of their links among it",
                file=sys.stderr,
            )
        return 0
    shown = asyncio.run(_status(found.config))
    if arguments.json:
        print(json.dumps(shown, indent=2))
    else:
        print(f"cluster {shown['cluster']} in {shown['metadata']}: {len(shown['brokers'])} brokers")
        rows = [
            (one["id"], one["http"], one["version"], f"{one['upSeconds']} s", one["state"])
            for one in shown["brokers"]
        ]
        if rows:
            print(
                "\n".join(aligned([("BROKER", "HTTP", "VERSION", "UP", "STATE"), *rows], left={0, 1, 2, 4}))
            )
    return 0 if shown["brokers"] else 1


async def _init(config: BrokerConfig) -> dict[str, Any]:
    from anabranch.broker.cluster_stores import make_cluster, metadata_of

    async with metadata_of(config, makes_folder=True) as metadata:
        is_new = await make_cluster(metadata, config)
    name = config.cluster_name
    text = f"made cluster {name}" if is_new else f"cluster {name} is there already"
    return {"cluster": name, "made": is_new, "text": text}


async def _status(config: BrokerConfig) -> dict[str, Any]:
    from anabranch.broker.catalog.registry import BROKERS, BadRegistration, BrokerRegistration
    from anabranch.broker.cluster_stores import cluster_name, metadata_of

    async with metadata_of(config) as metadata:
        name = await cluster_name(metadata)
        brokers = []
        for path, node in await metadata.scan(BROKERS):
            try:
                one = BrokerRegistration.decode(node.value)
            except BadRegistration as error:
                print(f"anabranch: {path}: {error}", file=sys.stderr)
                continue
            up_ms = time.time_ns() // 1_000_000 - one.started_ms
            brokers.append(
                {
                    "id": one.id,
                    "service": one.address.service_url or one.address.service_url_tls,
                    "http": one.address.http_url or one.address.http_url_tls,
                    "version": one.version,
                    "upSeconds": max(0, up_ms // 1000),
                    "state": "leaving" if one.is_draining else "serving",
                }
            )
    return {"cluster": name, "metadata": config.metadata_store_url, "brokers": brokers}
