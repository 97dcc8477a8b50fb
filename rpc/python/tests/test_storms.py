"""Kills and cancels under load: nothing raises, nothing stays behind, the order holds."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from cluster import Cluster, aeventually, eventually
from kvgate import AsyncGate

TICKETS = 500
KILLS = 10


async def test_500_tickets_through_10_leader_kills(three: Cluster) -> None:
    """Each ticket takes its turn again and again, each time as a new attempt, until the kills are over."""
    three.settings(maxWait="60s")
    stop = asyncio.Event()
    decisions: Counter[str] = Counter()

    async def worker(gate: AsyncGate, n: int) -> None:
        attempt = 0
        while attempt == 0 or not stop.is_set():
            async with gate.admit(ticket=f"t{n}:{attempt}", reservation_tokens=1000, session=f"s{n}") as grant:
                decisions[grant.reason] += 1
                await asyncio.sleep(random.uniform(0.05, 0.2))
            attempt += 1

    gate = AsyncGate(three.urls, default_max_wait=60, close_timeout=30)
    async with gate:
        workers = [asyncio.ensure_future(worker(gate, n)) for n in range(TICKETS)]
        try:
            await asyncio.to_thread(kill_leaders, three, workers)
        finally:
            stop.set()
        await asyncio.gather(*workers)
    stats = gate.stats()
    assert stats.unsettled == 0, stats
    assert stats.errors == 0, stats
    assert decisions["capacity_available"] >= TICKETS, (decisions, stats)
    await aeventually(three.nothing_left, f"leases or waiters stay: {three.budget()}", 20)
    check_order(three)


def kill_leaders(cluster: Cluster, workers: Sequence[asyncio.Future[None]]) -> None:
    """Kills whoever leads, again and again, and starts it anew; under load all the time."""
    for _ in range(KILLS):
        eventually(lambda: cluster.leader() is not None, "nobody leads")
        leader = cluster.leader()
        assert leader is not None
        granted = int(cluster.budget()["leases"])
        leader.kill()
        eventually(lambda: cluster.leader() is not None, "nobody leads after a kill")
        leader.start()
        cluster.wait_ready()
        assert granted >= 0
        for worker in workers:
            if worker.done():
                worker.result()


def check_order(cluster: Cluster) -> None:
    """Grants go to whoever queued first, by the server's own journal."""
    queue: list[str] = []
    waited = 0
    events = cluster.journal()
    kinds = Counter(e["kind"] for e in events)
    for event in events:
        ticket, kind = event["ticketId"], event["kind"]
        if kind == "waiting":
            queue.append(ticket)
        elif ticket in queue[:1] or (ticket in queue and kind != "admitted"):
            if kind in ("admitted", "bypassed", "cancelled", "abandoned", "aged", "holder_reclaimed"):
                waited += kind == "admitted"
                queue.remove(ticket)
        else:
            assert not (kind == "admitted" and ticket in queue), f"{ticket} before {queue[0]}"
    assert waited > 0, kinds


@pytest.mark.parametrize("multiplex", [True, False], ids=["multiplexed", "unary"])
async def test_cancel_storm_leaves_nothing(single: Cluster, multiplex: bool) -> None:
    """Thousands of attempts, each cancelled at a random time, in whatever state it is then."""
    gate = AsyncGate(single.urls, multiplex=multiplex, close_timeout=30)
    outcomes: Counter[str] = Counter()

    async def attempt(n: int) -> None:
        async with gate.admit(ticket=f"c{n}", reservation_tokens=9000) as grant:
            outcomes[grant.action] += 1
            await asyncio.sleep(random.uniform(0, 0.01))

    async def one(n: int, slots: asyncio.Semaphore) -> None:
        async with slots:
            task = asyncio.ensure_future(attempt(n))
            # From before the first step to long after the grant.
            for _ in range(random.choice((0, 1, 2, 3, 5, 8))):
                await asyncio.sleep(0)
            if random.random() < 0.7:
                await asyncio.sleep(random.expovariate(1 / random.choice((0.002, 0.02, 0.2))))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
                outcomes["finished"] += 1

    async with gate:
        slots = asyncio.Semaphore(100)
        await asyncio.gather(*(one(n, slots) for n in range(3000)))
    assert outcomes["admit"] > 0
    assert gate.stats().cancelled > 0
    assert gate.stats().unsettled == 0
    assert gate.stats().degraded == 0
    await aeventually(single.nothing_left, f"leases or waiters stay: {single.budget()}", 5)
