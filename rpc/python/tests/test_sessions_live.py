"""Sessions against a real node and a simulated engine."""

from __future__ import annotations

import pytest

import kvgate
from cluster import Cluster, aeventually, eventually
from kvgate import AsyncGate, Gate


def state(cluster: Cluster, session: str) -> str:
    """The session's state as the coordinator tells it."""
    said: str = cluster.any_node().rpc("SessionService/GetSession", sessionId=session)["session"]["state"]
    return said


@pytest.mark.parametrize("multiplex", [True, False], ids=["multiplexed", "unary"])
async def test_closes_after_the_last_ticket(single: Cluster, multiplex: bool) -> None:
    name = f"live-{multiplex}"
    async with AsyncGate(single.urls, multiplex=multiplex) as gate:
        async with gate.session(name, group="g", wait_closed=5) as session:
            assert session.opened
            held = await session.admit(ticket=f"{name}:0", reservation_tokens=7)
            [lease] = await gate.leases(session=name)
            assert (lease.ticket_id, lease.group_id) == (held.ticket, "g")
        assert state(single, name) == "SESSION_STATE_CLOSING"
        with pytest.raises(kvgate.SessionClosing):
            await gate.admit(ticket=f"{name}:1", reservation_tokens=7, session=name)
        held.release()
        await aeventually(lambda: state(single, name) == "SESSION_STATE_CLOSED", "the session stays open")
    assert gate.stats().session_failures == 0
    assert single.nothing_left()


async def test_a_bypassed_attempt_of_a_session_is_waited_for_too(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate, gate.session("live-bypass") as session:
        async with session.admit(ticket="live-bypass:0", protected=True) as grant:
            assert grant.reason == "protected"
            told = single.any_node().rpc("SessionService/GetSession", sessionId="live-bypass")["session"]
            assert told["inFlight"] == ["live-bypass:0"]
    await aeventually(lambda: state(single, "live-bypass") == "SESSION_STATE_CLOSED", "the session stays open")


def test_sessions_for_threads(single: Cluster) -> None:
    with Gate(single.urls) as gate:
        with gate.session("live-sync", group="g", wait_closed=5) as session:
            assert session.opened
            with session.admit(ticket="live-sync:0", reservation_tokens=7) as grant:
                assert grant.admitted
        eventually(lambda: state(single, "live-sync") == "SESSION_STATE_CLOSED", "the session stays open")
    assert gate.stats().session_failures == 0
