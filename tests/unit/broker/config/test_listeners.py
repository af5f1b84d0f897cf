"""Addresses for clients that name a listener."""

from __future__ import annotations

import pytest

from anabranch.broker.config.config import BrokerConfig, ConfigError, changed
from anabranch.broker.config.listeners import Addresses, check_distinct, default, filled, read
from anabranch.metadata.memory import MemoryMetadata
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.pulsar_pb2 import BaseCommand as C
from unit.broker.admin.conftest import NOW_MS, serving
from unit.broker.scalable.brokers import BrokerLab, Peer

INSIDE, OUTSIDE = "inside:pulsar://10.0.0.7:6650", "outside:pulsar+ssl://river.example.com:6651"
OWN = Addresses("pulsar://localhost:6650", "", "http://localhost:8080", "")


def test_the_addresses_of_one_name_are_gathered_and_the_internal_one_is_first() -> None:
    found = read([INSIDE, OUTSIDE, "outside:https://river.example.com:443"], "outside")
    assert list(found) == ["outside", "inside"]
    assert found["outside"] == Addresses(
        service_url_tls="pulsar+ssl://river.example.com:6651", http_url_tls="https://river.example.com:443"
    )


def test_who_names_no_listener_is_sent_to_the_first_or_to_the_brokers_own_address() -> None:
    assert default(read([INSIDE, OUTSIDE]), OWN) == Addresses("pulsar://10.0.0.7:6650", "", OWN.http_url, "")
    assert default({}, OWN) == OWN


@pytest.mark.parametrize(
    ("entries", "internal", "fault"),
    [
        (["pulsar://host:6650"], "", "is no listener"),
        (["a:kafka://host:9092"], "", "is no listener"),
        (["a:pulsar://host"], "", "is no listener"),
        (["a:pulsar://host:port"], "", "is no listener"),
        ([INSIDE, "inside:pulsar://10.0.0.8:6650"], "", "two addresses"),
        ([INSIDE], "outside", "none of inside"),
    ],
)
def test_what_is_no_listener_is_refused(entries: list[str], internal: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read(entries, internal)


def test_each_of_several_brokers_fills_its_number_and_its_ports_in() -> None:
    entries = ["a:pulsar://river.example.com:{port}", "a:http://web-{index}.example.com:80", INSIDE]
    assert filled(entries, 2, {"pulsar": 6662, "http": 8092}) == (
        "a:pulsar://river.example.com:6662",
        "a:http://web-2.example.com:80",
        INSIDE,
    )


def test_an_address_that_every_broker_would_have_is_refused() -> None:
    check_distinct(["a:pulsar://river.example.com:{port}", "b:pulsar://b{index}.example.com:6650"])
    with pytest.raises(ValueError, match=r"would be every broker's: write \{port\} or \{index\} into it"):
        check_distinct([INSIDE])


def test_a_listener_with_places_to_fill_in_is_allowed() -> None:
    config = changed(BrokerConfig(), {"advertisedListeners": "a:pulsar://host-{index}:{port}"})
    assert config.advertised_listeners == ("a:pulsar://host-{index}:{port}",)


def test_a_bad_listener_keeps_the_broker_from_starting() -> None:
    with pytest.raises(ConfigError, match=r"advertisedListeners: .*is no listener"):
        changed(BrokerConfig(), {"advertisedListeners": "pulsar://host:6650"})


async def test_lookups_over_http_send_clients_to_the_listener_they_name() -> None:
    config = BrokerConfig(advertised_listeners=(INSIDE, OUTSIDE))
    path = "/lookup/v2/topic/persistent/public/default/t"
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as rest:
        assert (await rest.get(path))["brokerUrl"] == rest.broker.service_url
        named = await rest.get(f"{path}?listenerName=outside")
        assert named["brokerUrlTls"] == "pulsar+ssl://river.example.com:6651"
        by_header = await rest.get(path, headers={"X-Pulsar-ListenerName": "inside"})
        assert by_header["brokerUrl"] == "pulsar://10.0.0.7:6650"
        assert "advertisedListeners" in await rest.refused("GET", f"{path}?listenerName=none", 409)


async def test_lookups_of_the_binary_protocol_send_clients_to_the_listener_they_name(lab: BrokerLab) -> None:
    broker = await lab.broker(advertised_listeners=(INSIDE, OUTSIDE))
    peer = await Peer.connect(broker.service_url)
    topic = "persistent://public/default/t"

    async def looked_up(listener: str) -> pb.CommandLookupTopicResponse:
        answer = await peer.ask(C.LOOKUP, "lookupTopic", topic=topic, advertised_listener_name=listener)
        return answer.lookupTopicResponse

    assert (await looked_up("")).brokerServiceUrl == broker.service_url
    assert (await looked_up("outside")).brokerServiceUrlTls == "pulsar+ssl://river.example.com:6651"
    assert (await looked_up("none")).error == pb.NotAllowedError
    await peer.close()
