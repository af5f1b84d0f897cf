"""Commands of the protocol that this broker does not serve: each gets the error answer its client waits for."""

from __future__ import annotations

from typing import Protocol

from anabranch.broker.errors import NotAllowedError
from anabranch.errors import AnabranchError, IllegalCommand
from anabranch.wire import pulsar_pb2 as pb

C = pb.BaseCommand


class Answerer(Protocol):
    def send(self, command: pb.BaseCommand) -> None: ...

    def send_error(self, request_id: int, error: BaseException) -> None: ...


# Request command -> (its field, the response command, the response's field).
_WITH_OWN_RESPONSE = {
    C.NEW_TXN: ("newTxn", C.NEW_TXN_RESPONSE, "newTxnResponse"),
    C.ADD_PARTITION_TO_TXN: (
        "addPartitionToTxn",
        C.ADD_PARTITION_TO_TXN_RESPONSE,
        "addPartitionToTxnResponse",
    ),
    C.ADD_SUBSCRIPTION_TO_TXN: (
        "addSubscriptionToTxn",
        C.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        "addSubscriptionToTxnResponse",
    ),
    C.END_TXN: ("endTxn", C.END_TXN_RESPONSE, "endTxnResponse"),
    C.END_TXN_ON_PARTITION: (
        "endTxnOnPartition",
        C.END_TXN_ON_PARTITION_RESPONSE,
        "endTxnOnPartitionResponse",
    ),
    C.END_TXN_ON_SUBSCRIPTION: (
        "endTxnOnSubscription",
        C.END_TXN_ON_SUBSCRIPTION_RESPONSE,
        "endTxnOnSubscriptionResponse",
    ),
    C.TC_CLIENT_CONNECT_REQUEST: (
        "tcClientConnectRequest",
        C.TC_CLIENT_CONNECT_RESPONSE,
        "tcClientConnectResponse",
    ),
}

_FIELD_OF = {
    field.number: field.name
    for field in C.DESCRIPTOR.fields
    if field.message_type is not None and "request_id" in field.message_type.fields_by_name
}


def refuse_unsupported(session: Answerer, kind: int, command: pb.BaseCommand) -> None:
    """Answers the command with an error. Raises IllegalCommand for commands that only a broker may send."""
    name = C.Type.Name(kind) if kind in C.Type.values() else str(kind)
    error: AnabranchError = NotAllowedError(f"{name} is not supported by this broker")
    own = _WITH_OWN_RESPONSE.get(kind)  # type: ignore[call-overload]  # Any int may come from the wire.
    if own is not None:
        field, answer_kind, answer_field = own
        request = getattr(command, field)
        answer = C(type=answer_kind)
        response = getattr(answer, answer_field)
        response.request_id = request.request_id
        for part in ("txnid_least_bits", "txnid_most_bits"):
            if part in response.DESCRIPTOR.fields_by_name and part in request.DESCRIPTOR.fields_by_name:
                setattr(response, part, getattr(request, part))
        response.error = pb.NotAllowedError
        response.message = "transactions are not supported by this broker"
        session.send(answer)
        return
    if kind == C.WATCH_TC_ASSIGNMENTS:
        answer = C(type=C.WATCH_TC_ASSIGNMENTS_UPDATE)
        update = answer.watchTcAssignmentsUpdate
        update.watch_id = command.watchTcAssignments.watch_id
        update.error = pb.NotAllowedError
        update.message = "transactions are not supported by this broker"
        session.send(answer)
        return
    if kind == C.WATCH_TC_ASSIGNMENTS_CLOSE:
        return
    answered = _FIELD_OF.get(kind)
    if answered is None or name.endswith("_RESPONSE") or kind in (C.ERROR, C.SUCCESS, C.PRODUCER_SUCCESS):
        raise IllegalCommand(f"{name} is not a command a client may send here")
    session.send_error(getattr(command, answered).request_id, error)
