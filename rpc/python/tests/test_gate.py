"""The asyncio gate against one real node."""

from __future__ import annotations

import asyncio

import pytest

import kvgate
from cluster import Cluster, aeventually
from kvgate import AsyncGate

CEILING = 90_000


@pytest.fixture(params=[True, False], ids=["multiplexed", "unary"])
def multiplex(request: pytest.FixtureRequest) -> bool:
    """Every test runs over both ways to carry tickets."""
    return bool(request.param)


async def test_admits_and_releases(single: Cluster, multiplex: bool) -> None:
    async with AsyncGate(single.urls, multiplex=multiplex) as gate:
        async with gate.admit(ticket="a:0", prompt_tokens=100, max_new_tokens=50) as grant:
            assert (grant.action, grant.reason) == ("admit", "capacity_available")
            assert grant.reservation_tokens == 150
            assert grant.lease is not None
            assert grant.lease.endswith(":a:0")
            assert 0 < grant.expires_in <= 600
            [lease] = await gate.leases(holder_id=gate.holder_id or "")
            assert lease.ticket_id == "a:0"
            grant.usage(prompt_tokens=90, completion_tokens=10, outcome="stop")
    assert single.nothing_left()
    stats = gate.stats()
    assert (stats.admitted, stats.released, stats.degraded) == (1, 1, 0)


async def waiters(single: Cluster, count: int) -> None:
    await aeventually(lambda: single.budget()["waiting"] == str(count), f"{count} tickets do not wait")


async def test_waits_in_order(single: Cluster, multiplex: bool) -> None:
    order: list[str] = []

    async def ask(gate: AsyncGate, name: str) -> None:
        async with gate.admit(ticket=name, reservation_tokens=CEILING) as grant:
            assert grant.admitted
            order.append(name)

    async with AsyncGate(single.urls, multiplex=multiplex) as gate:
        holding = await gate.admit(ticket="first", reservation_tokens=CEILING)
        waiting = []
        for i in range(5):
            waiting.append(asyncio.ensure_future(ask(gate, f"w{i}")))
            await waiters(single, i + 1)
        assert [w.ticket_id for w in await gate.waiters()] == [f"w{i}" for i in range(5)]
        holding.release()
        await asyncio.gather(*waiting)
        assert order == [f"w{i}" for i in range(5)]
    assert single.nothing_left()
    assert gate.stats().waited == 5


async def test_cancelled_while_waiting_leaves_nothing(single: Cluster, multiplex: bool) -> None:
    async with AsyncGate(single.urls, multiplex=multiplex) as gate:
        async with gate.admit(ticket="first", reservation_tokens=CEILING):
            waiting = asyncio.ensure_future(_enter(gate, "second"))
            await waiters(single, 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await waiters(single, 0)
        # The gate's own cancel leaves no trace for a new attempt of the same ticket.
        async with gate.admit(ticket="second", reservation_tokens=10) as grant:
            assert grant.admitted
    assert single.nothing_left()


async def _enter(gate: AsyncGate, ticket: str) -> kvgate.Grant:
    async with gate.admit(ticket=ticket, reservation_tokens=CEILING) as grant:
        return grant


async def test_released_when_the_body_raises(single: Cluster, multiplex: bool) -> None:
    async with AsyncGate(single.urls, multiplex=multiplex) as gate:
        with pytest.raises(ZeroDivisionError):
            async with gate.admit(ticket="b:0", reservation_tokens=10):
                raise ZeroDivisionError
    assert single.nothing_left()


async def test_one_ticket_is_charged_once(single: Cluster, multiplex: bool) -> None:
    async with AsyncGate(single.urls, multiplex=multiplex) as gate:
        grants = await asyncio.gather(*(_grant(gate, "same") for _ in range(10)))
        assert {g.lease for g in grants} == {grants[0].lease}
        assert single.budget()["reserved"] == "10"
        for grant in grants:
            grant.release()
    assert single.nothing_left()


async def _grant(gate: AsyncGate, ticket: str, tokens: int = 10) -> kvgate.Grant:
    return await gate.admit(ticket=ticket, reservation_tokens=tokens)


async def test_other_reservation_is_refused(single: Cluster, multiplex: bool) -> None:
    async with AsyncGate(single.urls, multiplex=multiplex) as gate, gate.admit(ticket="x", reservation_tokens=CEILING):
        waiting = asyncio.ensure_future(_grant(gate, "y", 500))
        await waiters(single, 1)
        with pytest.raises(kvgate.TicketMismatch):
            await _grant(gate, "y", 501)
        waiting.cancel()
    assert single.nothing_left()


async def test_oversized_protected_eval_and_max_wait(single: Cluster, multiplex: bool) -> None:
    async with AsyncGate(single.urls, multiplex=multiplex) as gate:
        async with gate.admit(ticket="big", reservation_tokens=CEILING + 1) as grant:
            assert (grant.action, grant.reason, grant.lease) == ("bypass", "oversized", None)
        async with gate.admit(ticket="judge", protected=True) as grant:
            assert grant.reason == "protected"
        async with gate.admit(ticket="eval", prompt_tokens=5, mode="eval") as grant:
            assert grant.reason == "out_of_scope"
        async with gate.admit(ticket="all", reservation_tokens=CEILING):
            async with gate.admit(ticket="now", reservation_tokens=1, max_wait=0) as grant:
                assert (grant.reason, grant.waited) == ("aged", 0.0)
    assert gate.stats().bypassed == {"oversized": 1, "protected": 1, "out_of_scope": 1, "aged": 1}
    assert single.nothing_left()


async def test_cancel_by_name(single: Cluster, multiplex: bool) -> None:
    async with AsyncGate(single.urls, multiplex=multiplex) as gate:
        async with gate.admit(ticket="c1", reservation_tokens=CEILING):
            waiting = asyncio.ensure_future(_grant(gate, "c2", CEILING))
            await waiters(single, 1)
            assert await gate.cancel("c2") == "waiting"
            grant = await waiting
            assert (grant.action, grant.reason) == ("bypass", "cancelled")
            assert await gate.cancel("c1") == "leased"
        assert await gate.cancel("c3") == "unknown"
        assert (await _grant(gate, "c3")).reason == "cancelled"
    assert single.nothing_left()


async def test_drains_a_step(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate:
        await gate.drain_step(0, run_id="drains")
        async with gate.admit(ticket="d:0", prompt_tokens=10, max_new_tokens=5):
            pass
        first = await gate.drain_step(1, run_id="drains")
        assert first["agentic_kv/admission/admit"] == 1.0
        assert first["agentic_kv/budget/ceiling"] == CEILING
        assert "agentic_kv/admission/bypass_degraded" not in first
        assert await gate.drain_step(1, run_id="drains") == first
        second = await gate.drain_step(2, run_id="drains")
        assert second.get("agentic_kv/admission/admit", 0.0) == 0.0


async def test_observes(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate:
        assert (await gate.budget()).ceiling == CEILING
        [engine] = await gate.engines()
        assert (engine.url, engine.healthy, engine.capacity_tokens) == (single.engine_url, True, 100_000)
        async with gate.admit(ticket="o:0", reservation_tokens=7) as grant:
            seen = await gate.ticket("o:0")
            assert (seen.lease_id, seen.reservation_tokens) == (grant.lease, 7)
        with pytest.raises(kvgate.CallFailed) as refused:
            await gate.budget(pool="nosuch")
        assert refused.value.code == "not_found"


async def test_renews_and_tells_when_a_lease_is_gone(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate:
        grant = await gate.admit(ticket="r:0", reservation_tokens=7, ttl=0.6)
        number = grant.number
        await asyncio.sleep(1.5)
        [lease] = await gate.leases(holder_id=gate.holder_id or "")
        assert (lease.grant, grant.lost) == (number, False)
        await grant.renew(30.0)
        assert 20 < grant.expires_in <= 30
        assert await gate.release(ticket="r:0")
        with pytest.raises(kvgate.LeaseGone):
            await grant.renew()
        assert grant.lost
        assert gate.stats().lost == 1
        grant.release()
    assert single.nothing_left()


async def test_close_releases_and_refuses(single: Cluster, multiplex: bool) -> None:
    gate = AsyncGate(single.urls, multiplex=multiplex)
    held = await _grant(gate, "h:0", CEILING)
    waiting = asyncio.ensure_future(_grant(gate, "h:1", CEILING))
    await waiters(single, 1)
    await gate.close()
    with pytest.raises(kvgate.GateClosed):
        await waiting
    with pytest.raises(kvgate.GateClosed):
        await _grant(gate, "h:2")
    held.release()
    await gate.close()
    assert single.nothing_left()
