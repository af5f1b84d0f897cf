"""The ports of a cluster, kept by its supervisor: each broker gets sockets of its own on them.

The ports that brokers share have one socket for each broker (SO_REUSEPORT), among which the system spreads connections.
A process that may share a port could also share another cluster's, so the supervisor first listens on it as an ordinary
program does, which is refused if any other program listens there. From then on it keeps the port with a socket that
never listens.

A broker's socket is made when its process is started, and listens when the broker serves. The supervisor has no copy of
it. So no connection waits in the queue of a broker that is dead or still starting: the others get it, or it is refused.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.runtime.listening import addresses_on, bound, listen, port_of, refusal

LOOPBACK: Final = "127.0.0.1"


def own_settings(config: BrokerConfig) -> BrokerConfig:
    """The settings by which a broker's own address is made."""
    if not config.brokers_one_port:
        return config
    return msgspec.structs.replace(
        config,
        bind_address=LOOPBACK,
        advertised_address="",
        advertised_listeners=(),
        internal_listener_name="",
    )


class PortGuard:
    """A port that is this process's and its children's until `close`. StartError if another program listens on it."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        with listen(host, port) as probe:
            self.port = port_of(probe)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._kept = bound(host, self.port, is_shared=True)
        # With this option an ordinary program could listen whenever no broker does.
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)

    def made(self) -> socket.socket:
        """Another socket on the port, which does not listen yet."""
        try:
            return bound(self._host, self.port, is_shared=True)
        except OSError as error:
            raise refusal(self._host, self.port, error) from None

    def close(self) -> None:
        self._kept.close()


class ClusterPorts:
    """The ports that brokers share and those that are one broker's own, by the schemes of their URLs.

    With one port for all clients, only the brokers themselves use their own ones, on this machine."""

    def __init__(self, config: BrokerConfig, brokers: int) -> None:
        self._config = config
        own_host = own_settings(config).bind_address
        self._guards: list[PortGuard] = []
        shared = {
            "pulsar": config.broker_service_port,
            "pulsar+ssl": config.broker_service_port_tls or None,
            "http": config.web_service_port,
            "https": config.web_service_port_tls or None,
        }
        first = {
            "pulsar": config.brokers_first_port,
            "pulsar+ssl": config.brokers_first_port_tls,
            "http": config.brokers_first_web_port,
            "https": config.brokers_first_web_port_tls,
        }
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._shared = {
                scheme: self._guard(config.bind_address, port)
                for scheme, port in shared.items()
                if port is not None
            }
            self._own = [
                {
                    scheme: self._guard(own_host, first[scheme] and first[scheme] + index)
                    for scheme in self._shared
                }
                for index in range(brokers)
            ]
            undo.pop_all()

    def _guard(self, host: str, port: int) -> PortGuard:
        made = PortGuard(host, port)
        self._guards.append(made)
        return made

    @property
    def shared(self) -> Addresses:
        return addresses_on(self._config, {scheme: guard.port for scheme, guard in self._shared.items()})

    def own_ports(self, index: int) -> Mapping[str, int]:
        return {scheme: guard.port for scheme, guard in self._own[index].items()}

    @contextlib.contextmanager
    def sockets(self, index: int) -> Iterator[dict[str, list[socket.socket]]]:
        """New sockets for a process of the broker with that number, its own first. The caller's copies are closed at
        the end."""
        with contextlib.ExitStack() as stack:
            yield {
                scheme: [
                    stack.enter_context(self._own[index][scheme].made()),
                    stack.enter_context(shared.made()),
                ]
                for scheme, shared in self._shared.items()
            }

    def close(self) -> None:
        for guard in self._guards:
            guard.close()
