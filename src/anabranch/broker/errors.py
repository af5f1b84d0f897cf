"""The errors by which a broker refuses requests, each with the protocol's error code.

AnabranchError
`-- BrokerError             a request that cannot be met; the message says what to do
    |-- NotReadyError       retryable: the broker or topic is between two states
    |-- TopicNotFoundError
    |-- TopicTerminatedError
    |-- ProducerBusyError   another producer holds the name or the topic
    |-- QuotaHoldError      the backlog is over its quota: clients keep their messages and try again
    |-- QuotaExceededError  the same where clients are to fail the messages they hold
    |-- EncryptionRequiredError
    |-- ProducerFencedError a newer producer with a higher claim has taken the topic
    |-- ConsumerBusyError   another consumer holds the exclusive subscription
    |-- ConsumerAssignError key ranges that overlap or are malformed
    |-- SubscriptionNotFoundError
    |-- SubscriptionBusyError  the subscription is of another type, or still has consumers
    |-- IncompatibleSchemaError
    |   `-- InvalidSchemaError  no definition at all
    `-- NotAllowedError     not possible here, for any client
        `-- TooManyTopicsError
"""

from __future__ import annotations

from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb


class BrokerError(AnabranchError):
    code = pb.UnknownError


class NotReadyError(BrokerError):
    retryable = True
    code = pb.ServiceNotReady


class TopicNotFoundError(BrokerError):
    code = pb.TopicNotFound


class TopicTerminatedError(BrokerError):
    code = pb.TopicTerminatedError


class ProducerBusyError(BrokerError):
    code = pb.ProducerBusy


class QuotaHoldError(BrokerError):
    retryable = True
    code = pb.ProducerBlockedQuotaExceededError


class QuotaExceededError(BrokerError):
    code = pb.ProducerBlockedQuotaExceededException


class EncryptionRequiredError(BrokerError):
    code = pb.MetadataError


class ProducerFencedError(BrokerError):
    code = pb.ProducerFenced


class ConsumerBusyError(BrokerError):
    code = pb.ConsumerBusy


class ConsumerAssignError(BrokerError):
    code = pb.ConsumerAssignError


class SubscriptionNotFoundError(BrokerError):
    code = pb.SubscriptionNotFound


class SubscriptionBusyError(BrokerError):
    code = pb.ConsumerBusy


class IncompatibleSchemaError(BrokerError):
    code = pb.IncompatibleSchema


class InvalidSchemaError(IncompatibleSchemaError):
    """The definition is not valid for its own schema type."""


class NotAllowedError(BrokerError):
    code = pb.NotAllowedError


class TooManyTopicsError(NotAllowedError):
    """The namespace has reached its maximum number of topics."""
