"""Limits on a topic's publish, dispatch and subscribe rates, as Pulsar's JSON. A rate of 0 or less is no limit."""

from __future__ import annotations

from anabranch.broker.policy.stored_json import Int32, Int64, InvalidValue, JsonStruct


class PublishRate(
    JsonStruct,
    frozen=True,
    rename={"messages": "publishThrottlingRateInMsg", "bytes": "publishThrottlingRateInByte"},
):
    """The most that all producers of a topic may publish a second. Above it their connections are not read for a
    while."""

    messages: Int32 = -1
    bytes: Int64 = -1

    @property
    def is_limit(self) -> bool:
        return self.messages > 0 or self.bytes > 0


class DispatchRate(
    JsonStruct,
    frozen=True,
    rename={
        "messages": "dispatchThrottlingRateInMsg",
        "bytes": "dispatchThrottlingRateInByte",
        "is_relative": "relativeToPublishRate",
        "seconds": "ratePeriodInSecond",
    },
):
    """The most that the consumers of a topic, or of one subscription, may be sent in each period.

    A relative rate is added to the present publish rate.
    """

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
    JsonStruct,
    frozen=True,
    rename={"times": "subscribeThrottlingRatePerConsumer", "seconds": "ratePeriodInSecond"},
):
    """How often one consumer may subscribe in each period: a consumer that reconnects more often is refused."""

    times: Int32 = -1
    seconds: Int32 = 30

    @property
    def is_limit(self) -> bool:
        return self.times > 0

    def check(self) -> None:
        if self.seconds < 1:
            raise InvalidValue("Invalid subscribe rate: ratePeriodInSecond must be at least 1")
