"""Source and sink of a broker that wants a token and speaks TLS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import jwt
import pytest

from anabranch import blocking
from harness.secured import SECRET, TOKEN, Authority, Secured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Secured]:
    """`writer` may produce and `reader` consume in public/default; only `admin` may do everything."""
    made = Secured(tmp_path_factory.mktemp("broker"), authority)
    made.settings |= {"authorizationEnabled": True, "superUserRoles": "admin"}
    with made as process:
        for role, action in (("writer", "produce"), ("reader", "consume")):
            process.post(f"namespaces/public/default/permissions/{role}", [action])
        yield process


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_rows_are_written_and_read_over_tls_with_a_token(
    spark: SparkSession, secured: Secured, authority: Authority, mode: str
) -> None:
    options = {
        "serviceUrl": secured.url_tls,
        "topic": f"topic://public/default/secured-{mode}",
        "authToken": TOKEN,
        "tlsTrustCertsFile": authority.file,
    }
    rows = spark.range(100).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format("anabranch").options(**options).mode("append").save()
    read = spark.read.format("anabranch").options(**options, readMode=mode).load()
    assert sorted(int(row.value) for row in read.collect()) == list(range(100))


def test_roles_write_and_read_what_is_granted_to_them_and_nothing_else(
    spark: SparkSession, secured: Secured
) -> None:
    options = {"serviceUrl": secured.url, "topic": "topic://public/default/by-roles"}
    writer = options | {"authToken": jwt.encode({"sub": "writer"}, SECRET, "HS256")}
    reader = options | {"authToken": jwt.encode({"sub": "reader"}, SECRET, "HS256")}
    rows = spark.range(100).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format("anabranch").options(**writer).mode("append").save()
    # Nothing was written: there is no segment to ask about, and the topic itself will do.
    rows.limit(0).write.format("anabranch").options(**writer).mode("append").save()
    # Only a super user is told where the files are; others read through the broker.
    read = spark.read.format("anabranch").options(**reader).load()
    assert sorted(int(row.value) for row in read.collect()) == list(range(100))
    with pytest.raises(Exception, match="role 'writer' may not consume"):
        spark.read.format("anabranch").options(**writer).load().collect()
    with pytest.raises(Exception, match="role 'reader' may not produce"):
        rows.write.format("anabranch").options(**reader).mode("append").save()


def test_a_query_without_a_token_is_told_so(spark: SparkSession, secured: Secured) -> None:
    with (
        blocking.connect(secured.url, token=TOKEN) as client,
        client.producer("topic://public/default/t") as t,
    ):
        t.send(b"1")
    read = spark.read.format("anabranch").options(serviceUrl=secured.url, topic="topic://public/default/t")
    with pytest.raises(Exception, match="authentication is required: show a token"):
        read.load().collect()
