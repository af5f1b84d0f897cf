"""The options that set a broker's settings: those of `anabranch standalone`, and of `anabranch config show`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from anabranch.broker.config.config import Loaded

# Settings with a flag of their own; `--set` sets all the others.
FLAGS: Final = {
    "--data-dir": "dataDir",
    "--port": "brokerServicePort",
    "--http-port": "webServicePort",
    "--host": "bindAddress",
    "--brokers": "brokers",
    "--one-port": "brokersOnePort",
    "--log-level": "logLevel",
    "--log-format": "logFormat",
}


def declare_broker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", metavar="DIR", help="folder for log and metadata, made if absent (default: data)"
    )
    parser.add_argument(
        "--port", type=int, metavar="P", help="port of Pulsar's binary protocol (default: 6650)"
    )
    parser.add_argument("--http-port", type=int, metavar="H", help="port of the admin REST (default: 8080)")
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--brokers",
        metavar="N|auto",
        help="how many brokers share the folder and the ports, each in a process of its own; auto: one for each core "
        "but one, at most 8 (default: 1)",
    )
    parser.add_argument(
        "--one-port",
        action="store_true",
        default=None,
        help="with several brokers: clients reach all of them through the one port, without TLS",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="settings, as in Pulsar's broker.conf, or TOML if named *.toml"
    )
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: info)")
    parser.add_argument("--log-format", metavar="FORMAT", help="text or json (default: text)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting; may be repeated"
    )


def settings(arguments: argparse.Namespace) -> Loaded:
    """Reads the settings from all their sources, with the defaults for as many brokers as they ask for."""
    from anabranch.broker.config.config import loaded
    from anabranch.broker.config.shared_defaults import for_brokers
    from anabranch.broker.config.sources import GivenSetting, SettingOrigin
    from anabranch.broker.config.units import broker_count
    from anabranch.cli.parsing.options import pairs

    flags = [
        GivenSetting(name, value, SettingOrigin("flag", f"--set {name}"))
        for name, value in pairs(arguments.set, "--set").items()
    ]
    for flag, name in FLAGS.items():
        value = getattr(arguments, flag[2:].replace("-", "_"))
        if value is not None:
            flags.append(GivenSetting(name, value, SettingOrigin("flag", flag)))
    found = loaded(Path(arguments.config) if arguments.config else None, os.environ, flags)
    return for_brokers(found, broker_count(found.config.brokers, os.cpu_count() or 1))
