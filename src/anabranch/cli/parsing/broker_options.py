"""The options that set a broker's settings: those of `anabranch standalone` and `anabranch broker`, and of
`anabranch config show`."""

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
    "--metadata": "metadataStoreUrl",
    "--log": "logUrl",
    "--cluster": "clusterName",
    "--port": "brokerServicePort",
    "--http-port": "webServicePort",
    "--host": "bindAddress",
    "--advertised-address": "advertisedAddress",
    "--brokers": "brokers",
    "--one-port": "brokersOnePort",
    "--log-level": "logLevel",
    "--log-format": "logFormat",
}


def declare_broker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", metavar="DIR", help="folder for log and metadata, made if absent (default: data)"
    )
    _declare_ports(parser)
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
    _declare_sources(parser)


def declare_member(parser: argparse.ArgumentParser) -> None:
    """The options of a broker whose metadata and log are shared with brokers of other machines."""
    declare_stores(parser)
    _declare_ports(parser)
    parser.add_argument(
        "--advertised-address",
        metavar="HOST",
        help="the name under which clients and other brokers reach this one",
    )
    _declare_sources(parser)


def declare_stores(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metadata",
        metavar="URL",
        help="where the brokers share their metadata: zk://host1,host2,host3/folder",
    )
    parser.add_argument(
        "--log",
        metavar="URL",
        help="where the brokers share their log: s3://bucket/prefix?endpoint=…, or file:///folder for all",
    )
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster")


def _declare_ports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, metavar="P", help="port of Pulsar's binary protocol (default: 6650)"
    )
    parser.add_argument("--http-port", type=int, metavar="H", help="port of the admin REST (default: 8080)")
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")


def declare_config_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", help="settings, as in Pulsar's broker.conf, or TOML if named *.toml"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting; may be repeated"
    )


def _declare_sources(parser: argparse.ArgumentParser) -> None:
    declare_config_file(parser)
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: info)")
    parser.add_argument("--log-format", metavar="FORMAT", help="text or json (default: text)")


# With fewer bundles than this many brokers would want, a cluster could not grow.
MEMBERS: Final = 3


def settings(arguments: argparse.Namespace, *, is_member: bool = False) -> Loaded:
    """Reads the settings from all their sources, with the defaults for as many brokers as they ask for, or for a
    broker of a cluster."""
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
        value = getattr(arguments, flag[2:].replace("-", "_"), None)
        if value is not None:
            flags.append(GivenSetting(name, value, SettingOrigin("flag", flag)))
    found = loaded(Path(arguments.config) if arguments.config else None, os.environ, flags)
    brokers = MEMBERS if is_member else broker_count(found.config.brokers, os.cpu_count() or 1)
    return for_brokers(found, brokers)
