"""`anabranch standalone`: settings from everywhere they may be, then the broker."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from anabranch.broker.config import load
from anabranch.cli.options import UsageError, pairs


def run(arguments: argparse.Namespace) -> int:
    flags = {
        **pairs(arguments.set, "--set"),
        "dataDir": arguments.data_dir,
        "brokerServicePort": arguments.port,
        "webServicePort": arguments.http_port,
        "bindAddress": arguments.host,
    }
    config, warnings = load(Path(arguments.config) if arguments.config else None, os.environ, flags)
    for warning in warnings:
        print(f"anabranch: {warning}", file=sys.stderr)
    if config.broker_service_port and config.broker_service_port == config.web_service_port:
        raise UsageError(
            f"both ports are {config.broker_service_port}: choose another with --port or --http-port"
        )
    # Not before the settings are known to be good: this import is most of the start-up time.
    from anabranch.broker.server import run_standalone

    return run_standalone(config)
