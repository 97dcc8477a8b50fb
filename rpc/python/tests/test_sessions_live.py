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


async def test_binds_and_closes_by_name(single: Cluster) -> None:
    engine = single.engine_url
    async with AsyncGate(single.urls) as gate:
        async with gate.session("live-bind", kind="bind") as session:
            await session.bind(engine, dp_rank=3, ttl=60)
            await gate.touch_session("live-bind")
            async with session.admit(ticket="live-bind:0", reservation_tokens=7) as grant:
                assert grant.binding == kvgate.Binding(engine, 3)
        for name in ("live-group:0", "live-group:1", "live-alone"):
            group = name.partition(":")[0]
            async with gate.admit(ticket=name, reservation_tokens=7, session=name, group=group):
                pass
        await gate.close_group("live-group", mode="abort", wait_closed=5)
        await gate.close_session("live-alone", wait_closed=5)
        for name in ("live-bind", "live-group:0", "live-group:1", "live-alone"):

            def closed(name: str = name) -> bool:
                return state(single, name) == "SESSION_STATE_CLOSED"

            await aeventually(closed, f"{name} stays open")
        with pytest.raises(kvgate.CallFailed) as failed:
            await gate.touch_session("live-nobody")
        assert failed.value.code == "not_found"
    assert gate.stats().sessions_closed == 3


def test_pins(single: Cluster) -> None:
    with Gate(single.urls) as gate:
        with pytest.raises(kvgate.CallFailed) as failed:
            gate.pin("prefix", tokens=100)
        assert (failed.value.name, failed.value.retryable) == ("pins_disabled", False)
        single.settings(pinRatio=0.5)
        try:
            with gate.session("live-pin", wait_closed=5) as session:
                session.bind(single.engine_url)
                pin = gate.pin("prefix", tokens=100, session="live-pin", ttl=600, engine_url=single.engine_url)
                assert (pin.pin_id, pin.tokens) == ("prefix", 100)
                assert 590 < pin.expires_in.seconds <= 600
                assert gate.pin("ids", token_ids=range(50)).tokens == 50
                assert {p.pin_id for p in gate.pins()} == {"prefix", "ids"}
                assert [p.pin_id for p in gate.pins(session="live-pin")] == ["prefix"]
                assert gate.unpin("ids") is True
                assert gate.unpin("ids") is False
            eventually(lambda: gate.pins() == [], "the pin outlives its session")
        finally:
            single.settings(pinRatio=0)
