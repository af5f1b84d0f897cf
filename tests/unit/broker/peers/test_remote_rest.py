"""REST requests at another broker: what arrives there, as whom, and what comes back."""

from __future__ import annotations

import pytest

from anabranch.broker.peers.errors import PeerUnavailable
from anabranch.broker.peers.remote_rest import RemoteRest, RestCall, RestReply, original_of
from anabranch.broker.security.rights import Proxied, principals
from unit.broker.peers.lab import PeerLab


async def test_a_request_is_answered_by_the_other_broker(peers: PeerLab) -> None:
    one, two = await peers.pair()
    here, there = RemoteRest(one.peers), RemoteRest(two.peers)
    with pytest.raises(PeerUnavailable, match="does not serve its REST yet"):
        await here.ask(two.id, RestCall("GET", "/admin/v2/x"))
    seen: list[RestCall] = []

    async def answer(call: RestCall) -> RestReply:
        seen.append(call)
        return RestReply(404, b"\x00body", "text/plain", {"X-Y": "z"})

    there.serve(answer)
    call = RestCall("POST", "/admin/v2/a%2Fb", "q=1&q=2", b"\xff\x00", {"Accept": "*/*"}, role="ann")
    assert await here.ask(two.id, call) == RestReply(404, b"\x00body", "text/plain", {"X-Y": "z"})
    assert seen == [call]


async def test_a_proxys_caller_stays_one(peers: PeerLab) -> None:
    """Else a proxy would have its own rights at other brokers, whomever it acts for."""
    one, two = await peers.pair()
    here, there = RemoteRest(one.peers), RemoteRest(two.peers)
    asked: list[tuple[str, ...]] = []

    async def answer(call: RestCall) -> RestReply:
        asked.append(principals(call.caller()))
        return RestReply(200)

    there.serve(answer)
    for role in ("ann", Proxied("proxy", "ben")):
        await here.ask(two.id, RestCall("GET", "/", role=str(role), original=original_of(role)))
    assert asked == [("ann",), ("proxy", "ben")]
