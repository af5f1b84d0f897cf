"""Limits on how fast a topic may be written and read, as Pulsar's JSON has them. A rate of 0 or less is no limit."""

from __future__ import annotations

from anabranch.broker.policy_json import Int32, Int64, InvalidValue, Json


class PublishRate(
    Json,
    frozen=True,
    rename={"messages": "publishThrottlingRateInMsg", "bytes": "publishThrottlingRateInByte"},
):
    """What all producers of a topic may publish a second. Above it their connections are not read for a while."""

    messages: Int32 = -1
    bytes: Int64 = -1

    @property
    def is_limit(self) -> bool:
        return self.messages > 0 or self.bytes > 0


class DispatchRate(
    Json,
    frozen=True,
    rename={
        "messages": "dispatchThrottlingRateInMsg",
        "bytes": "dispatchThrottlingRateInByte",
        "is_relative": "relativeToPublishRate",
        "seconds": "ratePeriodInSecond",
    },
):
    """What the consumers of a topic, or of one subscription, may be sent in each period.

    If it is relative, that much more than is published at the time."""

    messages: Int32 = -1
    bytes: Int64 = -1
    is_relative: bool = False
    seconds: Int32 = 1

    @property
    def is_limit(self) -> bool:
        return self.messages > 0 or self.bytes > 0

    def check(self) -> None:
        if self.seconds < 1:
            raise InvalidValue("Invalid dispatch rate: ratePeriodInSecond must be at least 1")


class SubscribeRate(
    Json,
    frozen=True,
    rename={"times": "subscribeThrottlingRatePerConsumer", "seconds": "ratePeriodInSecond"},
):
    """How often one consumer may subscribe in each period: one that comes back again and again is refused."""

    times: Int32 = -1
    seconds: Int32 = 30

    @property
    def is_limit(self) -> bool:
        return self.times > 0

    def check(self) -> None:
        if self.seconds < 1:
            raise InvalidValue("Invalid subscribe rate: ratePeriodInSecond must be at least 1")
