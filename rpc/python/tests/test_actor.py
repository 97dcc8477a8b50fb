"""The stand-in for a Ray admission actor."""

from __future__ import annotations

import asyncio

import pytest

from cluster import Cluster, aeventually
from kvgate import AsyncGate
from kvgate.actor import AdmissionActor


def request(ticket: str, tokens: int = 100, **more: object) -> dict[str, object]:
    return {"ticket_id": ticket, "reservation_tokens": tokens, **more}


async def test_acquires_and_releases_as_the_actor_does(single: Cluster) -> None:
    actor = AdmissionActor(AsyncGate(single.urls))
    await actor.start()
    decision = await actor.acquire.remote(request("ray:0"))
    lease = decision["lease_id"]
    assert decision == {
        "action": "admit",
        "reason": "capacity_available",
        "ticket_id": "ray:0",
        "reservation_tokens": 100,
        "lease_id": lease,
        "owner_epoch": int(lease.split(":")[0]),
        "wait_s": 0.0,
    }
    assert (await actor.acquire(request("ray:0")))["lease_id"] == lease
    assert (await actor.metrics())["budget/reserved"] == 100
    await actor.release(lease)
    await actor.release(lease)
    await aeventually(single.nothing_left, "the lease stays")
    assert (await actor.acquire(request("ray:1", protected=True)))["reason"] == "protected"
    drained = await actor.metrics(reset=True)
    assert drained["admission/bypass_protected"] >= 1
    await actor.shutdown()


async def test_cancel_takes_out_waiters_leases_and_what_comes_later(single: Cluster) -> None:
    actor = AdmissionActor(AsyncGate(single.urls))
    await actor.acquire(request("ray:all", 90_000))
    waiting = actor.acquire.remote(request("ray:w"))
    await aeventually(lambda: single.budget()["waiting"] == "1", "the ticket does not wait")
    await actor.cancel("ray:w")
    assert (await waiting)["reason"] == "cancelled"
    await actor.cancel("ray:all")
    await aeventually(single.nothing_left, "the lease stays")
    await actor.cancel("ray:later")
    decision = await actor.acquire(request("ray:later"))
    assert (decision["action"], decision["reason"], decision["lease_id"], decision["owner_epoch"]) == (
        "bypass",
        "cancelled",
        None,
        -1,
    )
    waiting = actor.acquire.remote(request("ray:gone"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await actor.shutdown()
    assert single.nothing_left()
