"""End-to-end encryption between our client and Pulsar's Python client, through a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import anabranch
from harness.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

WITHIN_S = 20


class Keys(NamedTuple):
    public: Path
    private: Path


def written(private: Any, folder: Path, name: str) -> Keys:
    keys = Keys(folder / f"{name}-public.pem", folder / f"{name}-private.pem")
    keys.public.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    keys.private.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return keys


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return written(rsa.generate_private_key(65537, 2048), tmp_path_factory.mktemp("keys"), "rsa")


@pytest.fixture
async def ours(broker: BrokerProcess) -> AsyncIterator[anabranch.Client]:
    async with anabranch.connect(broker.url) as client:
        yield client


@pytest.mark.parametrize("batching", [True, False], ids=["batches", "single"])
@pytest.mark.parametrize("compression", ["none", "zlib"])
async def test_their_consumer_decrypts_what_our_producer_encrypted(
    ours: anabranch.Client, client: pulsar.Client, topic: str, keys: Keys, batching: bool, compression: Any
) -> None:
    topic = f"persistent://public/default/{topic}"
    reader = pulsar.CryptoKeyReader(str(keys.public), str(keys.private))
    consumer = await asyncio.to_thread(client.subscribe, topic, "s", crypto_key_reader=reader)
    encryption = anabranch.Encryption(public_keys={"k": keys.public})
    async with ours.producer(
        topic, encryption=encryption, batching=batching, compression=compression
    ) as producer:
        for number in range(10):
            await producer.post(b"secret %d" % number, key="k")
    found = [await asyncio.to_thread(consumer.receive, WITHIN_S * 1000) for _ in range(10)]
    assert [message.data() for message in found] == [b"secret %d" % number for number in range(10)]


@pytest.mark.parametrize("batching", [True, False], ids=["batches", "single"])
async def test_our_consumer_decrypts_what_their_producer_encrypted(
    ours: anabranch.Client, client: pulsar.Client, topic: str, keys: Keys, batching: bool
) -> None:
    topic = f"persistent://public/default/{topic}"
    reader = pulsar.CryptoKeyReader(str(keys.public), str(keys.private))
    producer = await asyncio.to_thread(
        client.create_producer,
        topic,
        encryption_key="k",
        crypto_key_reader=reader,
        batching_enabled=batching,
        compression_type=pulsar.CompressionType.ZLib,
    )
    encryption = anabranch.Encryption(private_keys={"k": keys.private})
    async with ours.stream_consumer(topic, "s", encryption=encryption) as consumer:
        for number in range(10):
            producer.send_async(b"secret %d" % number, None)
        await asyncio.to_thread(producer.flush)
        found = [await consumer.receive(timeout_s=WITHIN_S) for _ in range(10)]
    assert [message.value for message in found] == [b"secret %d" % number for number in range(10)]


async def test_a_large_message_is_encrypted_in_chunks_and_read_by_both(
    ours: anabranch.Client, client: pulsar.Client, topic: str, keys: Keys
) -> None:
    topic = f"persistent://public/default/{topic}"
    reader = pulsar.CryptoKeyReader(str(keys.public), str(keys.private))
    theirs = await asyncio.to_thread(client.subscribe, topic, "theirs", crypto_key_reader=reader)
    payload = bytes(range(256)) * 4096 * 12
    encryption = anabranch.Encryption(public_keys={"k": keys.public}, private_keys={"k": keys.private})
    async with (
        ours.queue_consumer(topic, "ours", encryption=encryption) as consumer,
        ours.producer(topic, encryption=encryption, chunking=True) as producer,
    ):
        await producer.send(payload)
        assert (await consumer.receive(timeout_s=WITHIN_S)).payload == payload
    assert (await asyncio.to_thread(theirs.receive, WITHIN_S * 1000)).data() == payload


async def test_keys_of_curves_serve_our_own_clients_on_scalable_topics(
    ours: anabranch.Client, topic: str, tmp_path: Path
) -> None:
    topic = f"topic://public/default/{topic}"
    keys = written(ec.generate_private_key(ec.SECP256R1()), tmp_path, "curve")
    encryption = anabranch.Encryption(public_keys={"k": keys.public}, private_keys={"k": keys.private})
    async with ours.producer(topic, encryption=encryption) as producer:
        await producer.send(b"secret")
    async with ours.queue_consumer(topic, "s", start="earliest", encryption=encryption) as consumer:
        assert (await consumer.receive(timeout_s=WITHIN_S)).value == b"secret"


async def test_without_the_key_a_consumer_fails_skips_or_delivers_as_told(
    ours: anabranch.Client, topic: str, keys: Keys
) -> None:
    topic = f"topic://public/default/{topic}"
    async with ours.producer(
        topic, encryption=anabranch.Encryption(public_keys={"k": keys.public})
    ) as producer:
        await producer.send(b"secret")
    async with ours.producer(topic) as producer:
        await producer.send(b"plain")

    async def first(on_failure: Any) -> anabranch.Message:
        encryption = anabranch.Encryption(private_keys={"other": keys.private}, on_failure=on_failure)
        consumer = ours.queue_consumer(topic, on_failure, start="earliest", encryption=encryption)
        async with consumer as opened:
            return await opened.receive(timeout_s=WITHIN_S)

    with pytest.raises(anabranch.CryptoFailed, match="encrypted for k"):
        await first("fail")
    assert (await first("skip")).value == b"plain"
    delivered = await first("deliver")
    assert delivered.payload not in (b"plain", b"secret")
    async with ours.queue_consumer(topic, "none", start="earliest") as consumer:
        with pytest.raises(anabranch.CryptoFailed, match="encryption="):
            await consumer.receive(timeout_s=WITHIN_S)


async def test_a_broken_key_is_told_when_a_producer_is_opened(ours: anabranch.Client, topic: str) -> None:
    encryption = anabranch.Encryption(public_keys={"k": "missing.pem"})
    with pytest.raises(anabranch.CryptoFailed, match=r"missing\.pem"):
        await ours.producer(f"topic://public/default/{topic}", encryption=encryption)
