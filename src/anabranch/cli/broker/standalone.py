"""`anabranch standalone`: reads the settings from all their sources, then runs the broker, or several of them."""

from __future__ import annotations

import argparse
import os

from anabranch.broker.config.units import broker_count
from anabranch.cli.parsing.broker_options import settings
from anabranch.cli.parsing.options import UsageError


def run(arguments: argparse.Namespace) -> int:
    found = settings(arguments)
    config = found.config
    if config.metadata_store_url:
        raise UsageError(
            f"metadataStoreUrl is {config.metadata_store_url}: `anabranch standalone` keeps its metadata in "
            "--data-dir; start `anabranch broker`"
        )
    if config.log_url.startswith("file:"):
        raise UsageError(
            f"logUrl is {config.log_url}: `anabranch standalone` keeps files of its log in --data-dir, or objects at "
            "s3://bucket/prefix; start `anabranch broker`"
        )
    if config.broker_service_port and config.broker_service_port == config.web_service_port:
        raise UsageError(
            f"both ports are {config.broker_service_port}: choose another with --port or --http-port"
        )
    if config.brokers_one_port and (config.broker_service_port_tls or config.web_service_port_tls):
        raise UsageError(
            "--one-port passes connections on by their first bytes, which TLS hides: leave out it, or the TLS ports"
        )
    brokers = broker_count(config.brokers, os.cpu_count() or 1)
    # Imported after the settings are checked: this import is most of the start-up time.
    if brokers > 1:
        from anabranch.supervisor.run import run_cluster

        return run_cluster(config, brokers, found.warnings)
    from anabranch.broker.server import run_standalone

    return run_standalone(config, found.warnings)
