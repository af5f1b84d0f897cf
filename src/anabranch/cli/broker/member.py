"""`anabranch broker`: one broker of a cluster, whose metadata and log are where their URLs say."""

from __future__ import annotations

import argparse
from typing import Final

from anabranch.broker.config.config import BrokerConfig, Loaded
from anabranch.cli.parsing.broker_options import settings
from anabranch.cli.parsing.options import UsageError

_EXAMPLES: Final = {
    "metadataStoreUrl": "--metadata zk://host1,host2,host3/folder",
    "logUrl": "--log s3://bucket/prefix",
}


def run(arguments: argparse.Namespace) -> int:
    found = settings(arguments, is_member=True)
    check(found)
    config = found.config
    if config.broker_service_port and config.broker_service_port == config.web_service_port:
        raise UsageError(
            f"both ports are {config.broker_service_port}: choose another with --port or --http-port"
        )
    if config.brokers != "1" or config.brokers_one_port:
        raise UsageError(
            "`anabranch broker` runs one broker: start a process for each, with ports of its own; --brokers and "
            "--one-port are for `anabranch standalone`"
        )
    # Imported after the settings are checked: this import is most of the start-up time.
    from anabranch.broker.cluster_stores import is_loopback
    from anabranch.broker.server import run_member

    warnings = list(found.warnings)
    if is_loopback(_shown_host(config)) and not all(is_loopback(host) for host in _servers(config)):
        warnings.append(
            f"others are told to reach this broker at {_shown_host(config)}, which only this machine can: use --host "
            "0.0.0.0, and --advertised-address with the name of this machine"
        )
    return run_member(config, warnings, is_named="clusterName" in found.origins)


def check(found: Loaded) -> None:
    """UsageError unless the settings name both stores."""
    for name, value in (
        ("metadataStoreUrl", found.config.metadata_store_url),
        ("logUrl", found.config.log_url),
    ):
        if not value:
            raise UsageError(f"{name} is not set: use {_EXAMPLES[name]}")
    if "dataDir" in found.origins:
        raise UsageError("dataDir is for `anabranch standalone`: --log says where the messages are")


def _shown_host(config: BrokerConfig) -> str:
    return config.advertised_address or config.bind_address


def _servers(config: BrokerConfig) -> list[str]:
    from anabranch.metadata.zookeeper.address import zookeeper_address

    return [host for host, _ in zookeeper_address(config.metadata_store_url).servers]
