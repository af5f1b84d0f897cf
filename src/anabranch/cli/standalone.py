"""`anabranch standalone`: settings from everywhere they may be, then the broker."""

from __future__ import annotations

import argparse

from anabranch.cli.broker_options import settings
from anabranch.cli.options import UsageError


def run(arguments: argparse.Namespace) -> int:
    found = settings(arguments)
    config = found.config
    if config.broker_service_port and config.broker_service_port == config.web_service_port:
        raise UsageError(
            f"both ports are {config.broker_service_port}: choose another with --port or --http-port"
        )
    # Not before the settings are known to be good: this import is most of the start-up time.
    from anabranch.broker.server import run_standalone

    return run_standalone(config, found.warnings)
