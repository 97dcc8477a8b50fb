"""What callers forget: grants, admissions, gates."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

import kvgate
from cluster import Cluster, aeventually, eventually, free_port
from fake import fake
from kvgate import AsyncGate, Gate
from kvgate.v1 import admission_pb2 as pb
from kvgate.v1 import types_pb2


async def test_a_dropped_grant_is_given_back_and_named(single: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncGate(single.urls) as gate:
        grant = await gate.admit(ticket="forgotten", reservation_tokens=5)
        assert grant.admitted
        with pytest.warns(ResourceWarning, match="'forgotten' was dropped"), caplog.at_level(logging.WARNING, "kvgate"):
            del grant
        await aeventually(single.nothing_left, "the lease of a grant that nobody has stays")
        assert (gate.stats().dropped, gate.stats().released) == (1, 1)
    assert "'forgotten'" in caplog.text


async def test_a_grant_that_is_held_or_released_is_not_dropped(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate:
        async with gate.admit(ticket="held", reservation_tokens=5):
            gc.collect()
            assert [lease.ticket_id for lease in await gate.leases()] == ["held"]
        grant = await gate.admit(ticket="released", reservation_tokens=5)
        grant.release()
        del grant
        gc.collect()
    assert gate.stats().dropped == 0


def test_a_dropped_grant_of_a_thread_is_given_back(single: Cluster) -> None:
    with Gate(single.urls) as gate:
        grant = gate.acquire(ticket="forgotten", reservation_tokens=5)
        with pytest.warns(ResourceWarning, match="forgotten"):
            del grant
        eventually(single.nothing_left, "the lease stays")
        assert gate.stats().dropped == 1


async def test_an_admission_that_nobody_awaits_is_named() -> None:
    gate = AsyncGate("http://127.0.0.1:9")
    with pytest.warns(RuntimeWarning, match="'lost' was never awaited"):
        gate.admit(ticket="lost", reservation_tokens=5)


async def test_an_admission_is_entered_once_at_a_time(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate:
        admission = gate.admit(ticket="twice", reservation_tokens=5)
        async with admission:
            with pytest.raises(RuntimeError, match="entered already"):
                await admission.__aenter__()
        async with admission as grant:
            assert grant.admitted
    assert gate.stats().unsettled == 0
    assert single.nothing_left()


async def test_a_close_that_is_cancelled_still_ends_the_gate(single: Cluster) -> None:
    gate = AsyncGate([f"http://127.0.0.1:{free_port()}"], decision_budget=60)
    waiting = asyncio.ensure_future(_wait(gate))
    await aeventually(lambda: gate.stats().retries > 0, "the admission does not try")
    closing = asyncio.ensure_future(gate.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(kvgate.GateClosed):
        await waiting
    assert gate._core is not None
    assert gate._core.transport.closed


async def _wait(gate: AsyncGate) -> None:
    async with gate.admit(ticket="t", reservation_tokens=5):
        pass


async def test_a_close_with_a_wrong_timeout_does_not_half_close(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate:
        with pytest.raises(kvgate.InvalidArgument):
            await gate.close(timeout=-1)
        async with gate.admit(ticket="t", reservation_tokens=5) as grant:
            assert grant.admitted


async def test_a_call_that_is_repeated_hears_of_the_close() -> None:
    gate = AsyncGate([f"http://127.0.0.1:{free_port()}"], call_budget=600)
    asking = asyncio.ensure_future(gate.budget())
    await aeventually(lambda: gate.stats().retries > 0, "the call is not repeated")
    await gate.close()
    with pytest.raises(kvgate.GateClosed):
        await asking


def test_threads_hear_of_the_close() -> None:
    gate = Gate([f"http://127.0.0.1:{free_port()}"], call_budget=600)
    raised: list[BaseException] = []

    def call(what: Callable[[], object]) -> None:
        try:
            what()
        except BaseException as e:
            raised.append(e)

    asking = threading.Thread(target=call, args=(gate.budget,))
    asking.start()
    eventually(lambda: gate.stats().retries > 0, "the call is not repeated")
    closing = [threading.Thread(target=call, args=(gate.close,)) for _ in range(4)]
    for thread in closing:
        thread.start()
    for thread in [asking, *closing]:
        thread.join(30)
        assert not thread.is_alive()
    assert [type(e) for e in raised] == [kvgate.GateClosed]


def test_a_gate_that_is_dropped_ends_its_thread(single: Cluster) -> None:
    gate = Gate(single.urls)
    thread = gate._thread
    grant = gate.acquire(ticket="d", reservation_tokens=5)
    grant.release_wait()
    with pytest.warns(ResourceWarning, match="without close"):
        del grant, gate
    thread.join(30)
    assert not thread.is_alive()
    assert single.nothing_left()


async def test_a_grant_is_released_from_any_thread(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate:
        grant = await gate.admit(ticket="elsewhere", reservation_tokens=5)
        await asyncio.to_thread(grant.release)
        await aeventually(single.nothing_left, "the lease stays")
    assert (gate.stats().released, gate.stats().dropped) == (1, 0)


def test_what_is_collected_after_its_loop_ended_is_quiet(single: Cluster) -> None:
    loop, gate = asyncio.new_event_loop(), AsyncGate(single.urls)

    async def part() -> None:
        await admitted.__aenter__()

    admitted = gate.admit(ticket="late", reservation_tokens=5)
    loop.run_until_complete(part())
    loop.run_until_complete(gate.close())
    loop.close()
    leaving = admitted.__aexit__(None, None, None)
    with pytest.raises(StopIteration):
        leaving.send(None)


def test_a_hook_that_waits_for_its_own_gate_is_told(single: Cluster) -> None:
    raised: list[BaseException] = []

    def hook(event: kvgate.Event) -> None:
        try:
            gate.budget()
        except BaseException as e:
            raised.append(e)

    with Gate(single.urls, on_event=hook) as gate, gate.admit(ticket="h", reservation_tokens=5):
        pass
    assert {type(e) for e in raised} == {kvgate.WrongLoop}


async def test_a_thread_gate_closes_within_a_running_loop(single: Cluster) -> None:
    with Gate(single.urls) as gate:
        assert gate.budget().ceiling > 0


@pytest.mark.parametrize(
    "body",
    [
        "gate = kvgate.Gate(URL); grant = gate.acquire(ticket='x:0', reservation_tokens=5); assert grant.admitted",
        "async def main():\n"
        "    gate = kvgate.AsyncGate(URL)\n"
        "    grant = await gate.admit(ticket='x:1', reservation_tokens=5)\n"
        "    assert grant.admitted\n"
        "asyncio.run(main())",
        "async def wait(gate, n):\n"
        "    async with gate.admit(ticket=f'x:{n}', reservation_tokens=90_000):\n"
        "        await asyncio.sleep(60)\n"
        "async def main():\n"
        "    gate = kvgate.AsyncGate(URL)\n"
        "    tasks = [asyncio.ensure_future(wait(gate, n)) for n in range(2, 5)]\n"
        "    while gate.stats().admitted == 0:\n"
        "        await asyncio.sleep(0.01)\n"
        "asyncio.run(main())",
    ],
    ids=["threads", "asyncio", "asyncio that waits"],
)
def test_an_exit_without_a_close_is_quick_and_quiet(single: Cluster, body: str) -> None:
    [url] = single.urls
    script = f"import asyncio, kvgate\nURL = {url!r}\n{body}\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert not [line for line in ("Traceback", "Error", "was destroyed") if line in done.stderr], done.stderr
    eventually(single.nothing_left, "the holder of a process that ended keeps its lease", limit=60)


async def test_a_node_that_answers_polls_at_once_is_not_flooded() -> None:
    polls = 0

    def answer(method: str, body: bytes) -> pb.SubmitResponse | pb.AwaitGrantsResponse | pb.HeartbeatResponse:
        nonlocal polls
        if method == "AdmissionService/Submit":
            ops = pb.SubmitRequest.FromString(body).ops
            waits = pb.AcquireResponse(action=types_pb2.ACTION_WAIT, ticket_id="t")
            cancelled = pb.CancelResponse(was=types_pb2.CANCEL_STATE_WAITING)
            return pb.SubmitResponse(
                results=[
                    pb.ExchangeResponse(seq=op.seq, acquire=waits)
                    if op.HasField("acquire")
                    else pb.ExchangeResponse(seq=op.seq, cancel=cancelled)
                    for op in ops
                ]
            )
        if method == "AdmissionService/AwaitGrants":
            polls += 1
            return pb.AwaitGrantsResponse(cursor="1")
        return pb.HeartbeatResponse()

    began = time.monotonic()
    async with fake(answer) as url, AsyncGate(url, decision_budget=1) as gate:
        async with gate.admit(ticket="t", reservation_tokens=5, max_wait=1) as grant:
            assert grant.reason == "degraded"
    # Pauses of 50 ms that double to 1 s; without them there were thousands.
    assert polls < 10 + 2 * (time.monotonic() - began)
