"""`decode=true` beyond one topic with a record: several topics, pairs, Protobuf, encrypted values, columns of users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf import message_factory

from anabranch import AvroSchema, blocking
from anabranch.client import Encryption
from anabranch.client.schema.schemas import Schema
from anabranch.spark.values.protobuf import descriptor_of
from anabranch.spark.values.types import value_schema
from anabranch.wire import pulsar_pb2 as pb
from harness.broker_process import BrokerProcess
from spark.conftest import River, read
from unit.spark.values.test_key_values import inline, pairs
from unit.spark.values.test_protobuf import native, orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPACE = "public/kinds"


@dataclass
class Reading:
    sensor: str
    level: float


@dataclass
class Other:
    sensor: str
    level: str


class Raw(Schema[bytes]):
    """Bytes that another client has made, with its schema."""

    def __init__(self, info: pb.Schema) -> None:
        self._info = info

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, payload: bytes, version: bytes = b"") -> bytes:
        return payload

    def info(self) -> pb.Schema | None:
        return self._info


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Any]:
    with blocking.connect(broker.url) as made:
        yield made


def send(client: Any, river: River, schema: Any, *values: Any, **options: Any) -> None:
    with client.producer(river.topic, schema=schema, **options) as producer:
        for value in values:
            producer.send(value)


# -- columns of users


def test_columns_that_users_give_are_refused_unless_they_are_the_sources_own(
    spark: SparkSession, river: River, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException, StreamingQueryException

    river.publish(3)
    own = read(spark, river, columns="key,value")
    same = spark.read.format("anabranch").options(**river.options(columns="key,value")).schema(own.schema)
    assert sorted(row.value for row in same.load().collect()) == [b"0", b"1", b"2"]
    refused = r"\.schema\(…\) is struct<value:string>.*columns are key binary, value binary.*leave \.schema\(…\) out"
    other = (
        spark.read.format("anabranch").options(**river.options(columns="key,value")).schema("value string")
    )
    with pytest.raises(PySparkException, match=refused):
        other.load().collect()
    stream = spark.readStream.format("anabranch").options(**river.options(columns="key,value"))
    writer = stream.schema("value string").load().writeStream.format("noop")
    with pytest.raises(StreamingQueryException, match=refused):
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination()


# -- several topics


def test_topics_of_a_namespace_are_decoded_if_their_columns_are_the_same(
    spark: SparkSession, broker: BrokerProcess, client: Any, tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException, PySparkException

    broker.put(f"namespaces/{SPACE}", {})
    options = {"serviceUrl": broker.url, "topicsPattern": f"{SPACE}/same-.*", "decode": "true"}
    with pytest.raises(
        AnalysisException, match=r"there are none yet of the topics of public/kinds.*'same-\.\*'"
    ):
        spark.read.format("anabranch").options(**options).load()
    one, two = (River(broker, f"same-{name}", namespace=SPACE) for name in ("one", "two"))
    send(client, one, Reading, Reading("a", 1.0))
    send(client, two, Reading, Reading("b", 2.0))
    frame = spark.read.format("anabranch").options(**options).load()
    assert sorted((row.sensor, row.level) for row in frame.collect()) == [("a", 1.0), ("b", 2.0)]

    # One that joins between analysis and the batch.
    frame = spark.read.format("anabranch").options(**options).load()
    lenient = spark.read.format("anabranch").options(**options, decodeErrors="null").load()
    joined = River(broker, "same-three", namespace=SPACE)
    send(client, joined, AvroSchema(Reading), Reading("c", 3.0))
    what = "same-three has the schema Avro, and .*same-one has the schema Json: read them in two"
    with pytest.raises(PySparkException, match=what):
        frame.collect()
    assert [row.sensor for row in lenient.where("undecoded is not null").collect()] == [None]
    with pytest.raises(AnalysisException, match=what):
        spark.read.format("anabranch").options(**options).load()
    everything = {"serviceUrl": broker.url, "namespace": SPACE, "decode": "true"}
    with pytest.raises(AnalysisException, match=what):
        spark.read.format("anabranch").options(**everything).load()
    for river in (one, two, joined):
        river.close()


def test_named_topics_with_other_columns_are_both_named(
    spark: SparkSession, broker: BrokerProcess, client: Any
) -> None:
    from pyspark.errors import AnalysisException

    rivers = [River(broker, f"differ-{name}") for name in ("one", "two", "none")]
    send(client, rivers[0], Reading, Reading("a", 1.0))
    send(client, rivers[1], Other, Other("a", "high"))

    def load(*which: int) -> Any:
        topics = ",".join(rivers[number].topic for number in which)
        options = {"serviceUrl": broker.url, "topics": topics, "decode": "true"}
        return spark.read.format("anabranch").options(**options).load()

    with pytest.raises(AnalysisException, match=r"differ-two has other columns than .*differ-one: read them"):
        load(0, 1)
    with pytest.raises(AnalysisException, match=r"differ-none has no schema"):
        load(0, 2)
    for river in rivers:
        river.close()


# -- other kinds of schemas


def test_pairs_are_one_column_whether_the_key_is_the_messages_or_not(
    spark: SparkSession, broker: BrokerProcess, client: Any
) -> None:
    rivers = [River(broker, f"pairs-{name}") for name in ("inline", "separated")]
    send(client, rivers[0], Raw(pairs(("STRING", b""), ("INT32", b""))), inline(b"x", b"\0\0\0\7"))
    with client.producer(
        rivers[1].topic, schema=Raw(pairs(("INT32", b""), ("STRING", b""), "SEPARATED"))
    ) as made:
        made.send(b"seven", key=b"\0\0\0\7")
    (one,) = read(spark, rivers[0], decode="true").select("value.key", "value.value").collect()
    assert tuple(one) == ("x", 7)
    (two,) = read(spark, rivers[1], decode="true").select("key", "value").collect()
    assert (two.key, two.value.key, two.value.value) == (b"\0\0\0\7", 7, "seven")
    for river in rivers:
        river.close()


def test_fields_of_protobuf_messages_are_columns(spark: SparkSession, river: River, client: Any) -> None:
    schema = native(orders(), "shop.Order")
    order = message_factory.GetMessageClass(descriptor_of(value_schema(schema).definition))
    made = order(number=5, kind=1, lines=[{"item": "tea", "count": 2}])
    send(client, river, Raw(schema), made.SerializeToString())
    (row,) = read(spark, river, decode="true").select("number", "kind", "lines", "made").collect()
    assert (row.number, row.kind, row.lines[0].item, row.made) == (5, "GIFT", "tea", None)


# -- encrypted values


def test_encrypted_values_are_read_and_decoded_with_their_key(
    spark: SparkSession, river: River, client: Any, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    private = rsa.generate_private_key(65537, 2048)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    key = tmp_path / "Orders.pem"
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    send(client, river, Reading, Reading("plain", 0.0))
    send(client, river, Reading, Reading("secret", 1.0), encryption=Encryption({"Orders": public.decode()}))
    rows = read(spark, river, decode="true", decryptionKeys=f"Orders={key}").orderBy("level").collect()
    assert [row.sensor for row in rows] == ["plain", "secret"]
    with pytest.raises(PySparkException, match=r"encrypted for Orders.*option decryptionKeys \(not given\)"):
        read(spark, river).collect()
    with pytest.raises(PySparkException, match=r"no private key of that name.*decryptionKeys \(else=/x\)"):
        read(spark, river, decryptionKeys="else=/x").collect()
