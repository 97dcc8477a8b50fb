"""The gate for threads against one real node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import kvgate
from cluster import Cluster
from kvgate import Gate


def test_threads_share_a_gate(single: Cluster) -> None:
    with Gate(single.urls) as gate:

        def attempt(n: int) -> str:
            with gate.admit(ticket=f"t{n}", reservation_tokens=9000) as grant:
                grant.usage(prompt_tokens=1, completion_tokens=2)
                return grant.action

        with ThreadPoolExecutor(32) as pool:
            assert set(pool.map(attempt, range(200))) == {"admit"}
    assert gate.stats().released == 200
    assert single.nothing_left()


def test_all_calls(single: Cluster) -> None:
    with Gate(single.urls) as gate:
        grant = gate.acquire(ticket="s:0", reservation_tokens=7)
        assert grant.admitted
        assert grant.expires_in > 0
        grant.renew(60)
        assert gate.ticket("s:0").lease_id == grant.lease
        assert [lease.ticket_id for lease in gate.leases(holder_id=gate.holder_id or "")] == ["s:0"]
        assert gate.waiters() == []
        assert gate.budget().reserved == 7
        assert len(gate.engines()) == 1
        grant.release_wait()
        assert gate.budget().reserved == 0
        assert gate.cancel("s:1") == "unknown"
        assert gate.release(ticket="s:0") is False
        assert gate.drain_step(1, run_id="sync")["agentic_kv/budget/ceiling"] == 90_000
    with pytest.raises(kvgate.GateClosed):
        gate.acquire(ticket="s:2", reservation_tokens=7)
    grant.release()
    gate.close()


def test_a_gate_that_is_closed_inside_a_session_hides_no_error(single: Cluster) -> None:
    gate = Gate(single.urls)

    def body() -> None:
        with gate.session("closed-inside"):
            gate.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    assert gate.stats().closes_lost == 1
    with Gate(single.urls) as again:
        again.close_session("closed-inside", wait_closed=5)


def test_the_body_raises(single: Cluster) -> None:
    with Gate(single.urls) as gate:
        with pytest.raises(ZeroDivisionError), gate.admit(ticket="e:0", reservation_tokens=7):
            raise ZeroDivisionError
    assert single.nothing_left()
