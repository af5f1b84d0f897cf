"""The sockets on which a broker listens, made before anything is opened: a port in use is found first.

A broker of several has two sockets for each protocol: one on a port of its own, which its registration names, and one
on the port that all of them share.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.errors import AnabranchError

BACKLOG: Final = 1024


class StartError(AnabranchError):
    """A broker cannot start or continue; the message is one line for a person."""


@dataclass(frozen=True, slots=True)
class ServedSockets:
    """The sockets of one broker by protocol, its own before the shared ones. None has begun to accept connections."""

    binary: tuple[socket.socket, ...]
    binary_tls: tuple[socket.socket, ...] = ()
    web: tuple[socket.socket, ...] = ()
    web_tls: tuple[socket.socket, ...] = ()

    @property
    def ports(self) -> dict[str, int]:
        """The broker's own ports by the scheme of their URLs."""
        found = {
            "pulsar": self.binary,
            "pulsar+ssl": self.binary_tls,
            "http": self.web,
            "https": self.web_tls,
        }
        return {scheme: port_of(sockets[0]) for scheme, sockets in found.items() if sockets}

    def listen_on_own(self) -> None:
        """From here on the system queues connections to this broker. A socket that listens already stays so."""
        for sockets in (self.binary, self.binary_tls, self.web, self.web_tls):
            for sock in sockets[:1]:
                sock.listen(BACKLOG)

    def listen_on_shared(self) -> None:
        """From here on this broker gets its part of the connections to all."""
        for sockets in (self.binary, self.binary_tls, self.web, self.web_tls):
            for sock in sockets[1:]:
                sock.listen(BACKLOG)


def port_of(sock: socket.socket) -> int:
    number: int = sock.getsockname()[1]
    return number


def bound(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A socket on that port; 0 is any free one. `is_shared` joins the sockets of this user that were made so."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise refusal(host, port, error) from None
    sock.setblocking(False)
    return sock


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on a port that no other program listens on. StartError says what is wrong with it."""
    sock = bound(host, port)
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise refusal(host, port, error) from None
    return sock


def refusal(host: str, port: int, error: OSError) -> StartError:
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"port {port} on {host} is in use by another program; --port and --http-port choose others"
        )
    return StartError(f"cannot listen on {host}:{port}: {error.strerror or error}")


def addresses_on(config: BrokerConfig, ports: Mapping[str, int]) -> Addresses:
    """The addresses for clients on these ports, given by the schemes of their URLs."""
    host = config.advertised_address
    if not host:
        host = socket.gethostname() if config.bind_address in ("0.0.0.0", "::", "") else config.bind_address
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"

    def url(scheme: str) -> str:
        return f"{scheme}://{host}:{ports[scheme]}" if ports.get(scheme) else ""

    return Addresses(url("pulsar"), url("pulsar+ssl"), url("http"), url("https"))


@contextlib.contextmanager
def sole_sockets(config: BrokerConfig) -> Iterator[ServedSockets]:
    """The listening sockets of a broker that shares no ports; closed at the end."""
    host = config.bind_address
    with contextlib.ExitStack() as stack:

        def made(port: int) -> tuple[socket.socket, ...]:
            return (stack.enter_context(listen(host, port)),)

        yield ServedSockets(
            web=made(config.web_service_port),
            web_tls=made(config.web_service_port_tls) if config.web_service_port_tls else (),
            binary=made(config.broker_service_port),
            binary_tls=made(config.broker_service_port_tls) if config.broker_service_port_tls else (),
        )
