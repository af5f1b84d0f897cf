"""Checks of the options of `connect`, before anything is opened."""

from __future__ import annotations

from urllib.parse import urlsplit

from anabranch.client.errors import BadArgument


def check_service_url(service_url: str) -> None:
    """Accepts `pulsar://host:port`, or several hosts separated by commas."""
    if not isinstance(service_url, str):
        raise BadArgument(f"service_url={service_url!r}: give text such as 'pulsar://localhost:6650'")
    scheme, _, hosts = service_url.partition("://")
    if scheme in ("http", "https"):
        raise BadArgument(
            f"service_url={service_url!r}: give the address of the binary port, pulsar:// or pulsar+ssl://"
        )
    if scheme not in ("pulsar", "pulsar+ssl") or not all(_is_host(host.strip()) for host in hosts.split(",")):
        raise BadArgument(
            f"service_url={service_url!r}: give pulsar://host:port, or several as pulsar://one:6650,two:6650"
        )


def _is_host(host: str) -> bool:
    try:
        url = urlsplit(f"pulsar://{host}")
        return bool(url.hostname) and (url.port is None or url.port > 0) and not url.path
    except ValueError:  # A port that is no number, or an invalid address in brackets.
        return False


def check_seconds(name: str, value: float | None) -> None:
    """A time-out must be a positive number of seconds."""
    if value is not None and not (isinstance(value, (int, float)) and value > 0):
        raise BadArgument(f"{name}={value!r}: give a number of seconds above 0")
