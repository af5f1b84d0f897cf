"""Partitions' figures as one topic's."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.topics.partitions import merged


def test_figures_are_added_and_parts_with_a_name_are_merged_by_it() -> None:
    one: dict[str, Any] = {
        "msgRateIn": 1.5,
        "averageMsgSize": 10.0,
        "topicCreationTimeStamp": 0,
        "lastPublishTimeStamp": 5,
        "earliestMsgPublishTimeInBacklogs": 7,
        "isTerminated": False,
        "owner": "first",
        "publishers": [{"producerName": "p", "msgRateIn": 1.0}, {"producerName": "q", "msgRateIn": 2.0}],
        "subscriptions": {"s": {"msgBacklog": 2, "type": None, "consumers": []}},
        "replication": {},
    }
    other: dict[str, Any] = {
        "msgRateIn": 2.0,
        "averageMsgSize": 4.0,
        "topicCreationTimeStamp": 9,
        "lastPublishTimeStamp": 3,
        "earliestMsgPublishTimeInBacklogs": 6,
        "isTerminated": True,
        "owner": "second",
        "publishers": [{"producerName": "p", "msgRateIn": 4.0}],
        "subscriptions": {"s": {"msgBacklog": 3, "type": "Shared", "consumers": []}, "t": {"msgBacklog": 1}},
        "replication": {},
        "only": 1,
    }
    assert merged([one, other]) == {
        "msgRateIn": 3.5,
        "averageMsgSize": 10.0,
        "topicCreationTimeStamp": 9,
        "lastPublishTimeStamp": 5,
        "earliestMsgPublishTimeInBacklogs": 6,
        "isTerminated": True,
        "owner": "first",
        "publishers": [{"producerName": "p", "msgRateIn": 5.0}, {"producerName": "q", "msgRateIn": 2.0}],
        "subscriptions": {"s": {"msgBacklog": 5, "type": "Shared", "consumers": []}, "t": {"msgBacklog": 1}},
        "replication": {},
        "only": 1,
    }
    assert merged([]) == {}


def test_thousands_of_partitions_with_a_producer_each_are_merged_in_one_go() -> None:
    """Hours, if each were compared with all others again for each partition."""
    parts = [{"publishers": [{"producerName": f"p{n}", "msgRateIn": 1.0}]} for n in range(20_000)]
    assert len(merged(parts)["publishers"]) == 20_000
