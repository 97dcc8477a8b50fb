"""Coordinators that are down, slow, or speak nonsense; programming errors; forks and event loops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import kvgate
from cluster import Cluster, eventually, free_port
from kvgate import AsyncGate, Event, Gate
from kvgate.v1 import admission_pb2

BUDGET = 0.6
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[str]:
    """A server that does one thing on every connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await answer(reader, writer)
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        port = listening.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        listening.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes the request and never answers."""
    while await reader.read(65536):
        pass


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await writer.drain()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hangs up in the middle of its answer."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\ncontent-length: 99\r\n\r\nabc")
    await writer.drain()


async def byte_by_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers, but will not live to see the end of it."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\ncontent-length: 99999\r\n\r\n")
    while True:
        writer.write(b"\0")
        await writer.drain()
        await asyncio.sleep(0.02)


async def http2_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begins with an HTTP/2 SETTINGS frame."""
    writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    await writer.drain()
    await reader.read(1 << 16)


def says(body: bytes, kind: str = "application/proto", status: str = "200 OK") -> Answer:
    """Answers every request with the same body."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length"))
            await reader.readexactly(length)
            writer.write(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode())
            writer.write(body)
            await writer.drain()

    return answer


NONSENSE = {
    "silent": silent,
    "hangs up": hangs_up,
    "no HTTP": no_http,
    "endless": endless,
    "half an answer": half,
    "byte by byte": byte_by_byte,
    "HTTP/2 only": http2_only,
    "bottomless JSON": says(b"[" * 100_000, "application/json", "500 Internal Server Error"),
    "no gzip": says(b"plain", "application/proto\r\ncontent-encoding: gzip"),
    "no protobuf": says(b"\xff\xff\xff"),
    "no decision": says(b""),
    "a web page": says(b"<html>hello</html>", "text/html"),
    "an error page": says(b"<html>oops</html>", "text/html", "502 Bad Gateway"),
    "broken JSON": says(b'{"code":', "application/json", "500 Internal Server Error"),
    "odd JSON": says(b'[{"code": 7}]', "application/json", "500 Internal Server Error"),
    "odd details": says(b'{"code":"unavailable","details":[1,{"type":"kvgate.v1.ErrorInfo","value":"!"}]}',
                        "application/json", "503 Service Unavailable"),
    "a refused token": says(b'{"code":"unauthenticated"}', "application/json", "401 Unauthorized"),
    "a full queue": says(b'{"code":"resource_exhausted"}', "application/json", "429 Too Many Requests"),
    "a redirect": says(b"", "text/html", "302 Found"),
}  # fmt: skip


@pytest.mark.parametrize("multiplex", [True, False], ids=["multiplexed", "unary"])
@pytest.mark.parametrize("what", NONSENSE)
async def test_trouble_is_a_degraded_bypass_within_the_budget(
    what: str, multiplex: bool, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    async with server(NONSENSE[what]) as url:
        gate = AsyncGate(url, multiplex=multiplex, decision_budget=BUDGET, attempt_timeout=0.2, on_event=events.append)
        with caplog.at_level(logging.WARNING, "kvgate"):
            for n in range(3):
                began = time.monotonic()
                async with gate.admit(ticket=f"t{n}", reservation_tokens=5, max_wait=0) as grant:
                    assert (grant.action, grant.reason, grant.lease) == ("bypass", "degraded", None)
                    assert grant.cause is not None
                # The bound is the budget; the rest is for a busy machine.
                assert time.monotonic() - began < BUDGET + 2
        await gate.close(timeout=0.1)
    assert gate.stats().degraded == 3
    assert gate.stats().bypassed == {"degraded": 3}
    assert [e.kind for e in events].count("degraded") == 3
    lines = [r.getMessage() for r in caplog.records if "go ahead without a lease" in r.getMessage()]
    assert len(lines) == 1, lines


async def test_a_coordinator_that_is_down_costs_one_round_at_most(single: Cluster) -> None:
    dead = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
    gate = AsyncGate(dead, decision_budget=BUDGET, call_budget=BUDGET, close_timeout=0.1)
    async with gate, gate.session("s") as session:
        assert not session.opened
        for n in range(5):
            async with session.admit(ticket=f"t{n}", reservation_tokens=5) as grant:
                assert grant.reason == "degraded"
        with pytest.raises(kvgate.CallFailed) as failed:
            await gate.cancel("t0")
        assert failed.value.retryable
    assert gate.stats().degraded == 5
    assert (gate.stats().session_failures, gate.stats().closes_lost) == (1, 1)
    assert await gate.close() == 0


async def test_a_dead_endpoint_is_passed_by(single: Cluster) -> None:
    async with AsyncGate([f"http://127.0.0.1:{free_port()}", *single.urls]) as gate:
        async with gate.admit(ticket="p:0", reservation_tokens=5) as grant:
            assert grant.admitted
    assert gate.stats().degraded == 0
    assert single.nothing_left()


async def test_a_node_that_stops_answering_costs_its_budget_only(single: Cluster) -> None:
    [node] = single.nodes
    async with AsyncGate(single.urls, decision_budget=BUDGET, attempt_timeout=0.3) as gate:
        async with gate.admit(ticket="z:0", reservation_tokens=5):
            node.signal(signal.SIGSTOP)
            try:
                async with gate.admit(ticket="z:1", reservation_tokens=5, max_wait=0) as grant:
                    assert grant.reason == "degraded"
            finally:
                node.signal(signal.SIGCONT)
    # The release and the cancel of what the frozen node may have granted were repeated until known.
    assert gate.stats().unsettled == 0
    assert single.nothing_left()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"ticket": ""}, "ticketId"),
        ({"ticket": "x" * 257}, "ticketId"),
        ({"ticket": "a\nb"}, "ticketId"),
        ({"ticket": 7}, "ticketId"),
        ({}, "reservationTokens"),
        ({"prompt_tokens": -1}, "promptTokens"),
        ({"prompt_tokens": 1.5}, "promptTokens"),
        ({"max_new_tokens": 10**13}, "maxNewTokens"),
        ({"reservation_tokens": 0}, "reservationTokens"),
        ({"reservation_tokens": 5, "prompt_tokens": 5}, "reservationTokens"),
        ({"prompt_tokens": 5, "reservation": kvgate.Reservation(1, 1)}, "reservation"),
        ({"prompt_tokens": 5, "session": "s" * 257}, "sessionId"),
        ({"prompt_tokens": 5, "mode": "test"}, "mode"),
        ({"prompt_tokens": 5, "priority": 2**31}, "priority"),
        ({"prompt_tokens": 5, "max_wait": -1}, "maxWait"),
        ({"prompt_tokens": 5, "max_wait": float("nan")}, "maxWait"),
        ({"prompt_tokens": 5, "ttl": 0}, "ttl"),
        ({"prompt_tokens": 5, "pool": "a\x00"}, "pool"),
        ({"ticket": "\ud800", "prompt_tokens": 5}, "ticketId"),
        ({"ticket": "é" * 129, "prompt_tokens": 5}, "ticketId"),
        ({"prompt_tokens": True}, "promptTokens"),
        ({"prompt_tokens": None}, "promptTokens"),
        ({"prompt_tokens": 10**5000}, "promptTokens"),
        ({"prompt_tokens": int}, "promptTokens"),
        ({"reservation": 5}, "reservation"),
        ({"prompt_tokens": 5, "mode": []}, "mode"),
        ({"prompt_tokens": 5, "protected": "no"}, "protected"),
        ({"prompt_tokens": 5, "protected": None}, "protected"),
        ({"prompt_tokens": 5, "priority": True}, "priority"),
        ({"prompt_tokens": 5, "priority": 1.5}, "priority"),
        ({"prompt_tokens": 5, "max_wait": True}, "maxWait"),
        ({"prompt_tokens": 5, "max_wait": "5s"}, "maxWait"),
        ({"prompt_tokens": 5, "max_wait": 10**5000}, "maxWait"),
        ({"prompt_tokens": 5, "session": None}, "sessionId"),
    ],
)
async def test_programming_errors_raise_with_the_field(arguments: dict[str, object], field: str) -> None:
    gate = AsyncGate("http://127.0.0.1:9")
    with pytest.raises(kvgate.InvalidArgument) as raised:
        gate.admit(**{"ticket": "t", **arguments})  # type: ignore[arg-type]
    assert raised.value.field == field
    assert "allowed" in str(raised.value) or "exclude" in str(raised.value) or "must" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"endpoints": []}, "endpoints"),
        ({"endpoints": ["localhost:7070"]}, "endpoints"),
        ({"endpoints": ["http://u:p@h"]}, "endpoints"),
        ({"endpoints": ["http://h:99999"]}, "endpoints"),
        ({"holder_id": "a\tb"}, "holderId"),
        ({"decision_budget": 0}, "decisionBudget"),
        ({"retry_longest": 0.001}, "retryLongest"),
        ({"default_max_wait": -1}, "defaultMaxWait"),
        ({"endpoints": None}, "endpoints"),
        ({"endpoints": 7}, "endpoints"),
        ({"endpoints": [None]}, "endpoints"),
        ({"endpoints": b"http://h"}, "endpoints"),
        ({"endpoints": "http://h:1\n"}, "endpoints"),
        ({"endpoints": "http://a b:1"}, "endpoints"),
        ({"endpoints": "http://a:1,http://b:1"}, "endpoints"),
        ({"holder_id": 5}, "holderId"),
        ({"token": 5}, "token"),
        ({"token": "secret\n"}, "token"),
        ({"token": " secret"}, "token"),
        ({"token": "sécret"}, "token"),
        ({"verify": "/ca.pem"}, "verify"),
        ({"verify": None}, "verify"),
        ({"decision_budget": True}, "decisionBudget"),
        ({"call_budget": 10**5000}, "callBudget"),
        ({"retry_longest": None}, "retryLongest"),
        ({"retry_longest": float("nan")}, "retryLongest"),
        ({"close_timeout": None}, "closeTimeout"),
        ({"multiplex": "no"}, "multiplex"),
        ({"auto_renew": None}, "autoRenew"),
        ({"on_event": 3}, "onEvent"),
    ],
)
async def test_options_are_checked(options: dict[str, object], field: str) -> None:
    with pytest.raises(kvgate.InvalidArgument) as raised:
        AsyncGate(**{"endpoints": "http://h", **options})  # type: ignore[arg-type]
    assert raised.value.field == field
    assert "allowed" in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("usage", "field"),
    [
        ({"prompt_tokens": None}, "promptTokens"),
        ({"completion_tokens": 1.5}, "completionTokens"),
        ({"outcome": None}, "outcome"),
        ({"outcome": "é" * 33}, "outcome"),
        ({"outcome": "\ud800"}, "outcome"),
        ({"engine_url": 5}, "engineUrl"),
    ],
)
async def test_usage_raises_with_the_field(usage: dict[str, object], field: str) -> None:
    async with AsyncGate(f"http://127.0.0.1:{free_port()}") as gate:
        grant = await gate.admit(ticket="t", prompt_tokens=5, protected=True, max_wait=0)
        with pytest.raises(kvgate.InvalidArgument) as raised:
            grant.usage(**usage)  # type: ignore[arg-type]
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda g: g.release(lease=5), "leaseId"),
        (lambda g: g.release(lease="\ud800"), "leaseId"),
        (lambda g: g.budget(stale="yes"), "stale"),
        (lambda g: g.drain_step(True), "step"),
        (lambda g: g.drain_step(1, run_id=None), "runId"),
        (lambda g: g.bind_session("s", ""), "engineUrl"),
        (lambda g: g.bind_session("s", "http://e", dp_rank=-1), "dpRank"),
        (lambda g: g.bind_session("s", "http://e", dp_rank=65_536), "dpRank"),
        (lambda g: g.touch_session(""), "sessionId"),
        (lambda g: g.close_session("s", mode="kill"), "mode"),
        (lambda g: g.close_group(""), "groupId"),
        (lambda g: g.pin("p"), "tokens"),
        (lambda g: g.pin("p", tokens=1, token_ids=[1]), "tokens"),
        (lambda g: g.pin("p", token_ids=["a"]), "tokenIds"),
        (lambda g: g.pin("p", token_ids=5), "tokenIds"),
        (lambda g: g.pin("p", token_ids=[2**31]), "tokenIds"),
        (lambda g: g.pin("p", tokens=5, ttl="5m"), "ttl"),
        (lambda g: g.unpin(None), "pinId"),
        (lambda g: g.pins(session=5), "sessionId"),
    ],
)
async def test_calls_raise_with_the_field(call: Callable[[AsyncGate], Awaitable[object]], field: str) -> None:
    async with AsyncGate(f"http://127.0.0.1:{free_port()}") as gate:
        with pytest.raises(kvgate.InvalidArgument) as raised:
            await call(gate)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"session_id": None}, "sessionId"),
        ({"kind": []}, "kind"),
        ({"engine_url": None}, "engineUrl"),
        ({"engine_url": "x" * 2049}, "engineUrl"),
        ({"abort_on_error": "no"}, "abortOnError"),
        ({"idle_timeout": -1}, "idleTimeout"),
        ({"wait_closed": True}, "waitClosed"),
    ],
)
async def test_session_arguments_are_checked(arguments: dict[str, object], field: str) -> None:
    gate = AsyncGate("http://127.0.0.1:9")
    with pytest.raises(kvgate.InvalidArgument) as raised:
        gate.session(**{"session_id": "s", **arguments})  # type: ignore[arg-type]
    assert raised.value.field == field


async def test_what_the_coordinator_refuses_raises_with_its_field(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate:
        with pytest.raises(kvgate.InvalidArgument) as raised:
            await gate._core_now().tries.call(
                "AdmissionService/Cancel",
                admission_pb2.CancelRequest(pool="default"),
                admission_pb2.CancelResponse,
            )
        assert raised.value.field == "ticketId"


async def test_usage_is_checked_and_never_stops_the_release(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate:
        with pytest.raises(kvgate.InvalidArgument) as raised:
            async with gate.admit(ticket="u:0", reservation_tokens=5) as grant:
                grant.usage(prompt_tokens=-3)
        assert raised.value.field == "promptTokens"
    assert single.nothing_left()


async def test_a_hook_that_raises_never_reaches_the_rollout(single: Cluster) -> None:
    def hook(event: Event) -> None:
        raise ZeroDivisionError

    async with AsyncGate(single.urls, on_event=hook) as gate:
        async with gate.admit(ticket="k:0", reservation_tokens=5) as grant:
            assert grant.admitted
    assert gate.stats().released == 1


def test_another_event_loop_is_refused(single: Cluster) -> None:
    gate = AsyncGate(single.urls)

    async def use() -> None:
        async with gate.admit(ticket="l:0", reservation_tokens=5):
            pass

    first = asyncio.new_event_loop()
    first.run_until_complete(use())
    with pytest.raises(kvgate.WrongLoop):
        asyncio.run(use())
    first.run_until_complete(gate.close())
    first.close()
    assert single.nothing_left()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork with threads, which is the point
def test_after_a_fork_both_gates_say_so(single: Cluster) -> None:
    gate = Gate(single.urls)
    with gate.admit(ticket="f:0", reservation_tokens=5) as grant:
        child = os.fork()
        if child == 0:
            os._exit(_in_the_child(gate, single.urls))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert grant.admitted
    gate.close()
    assert single.nothing_left()


def _in_the_child(gate: Gate, urls: list[str]) -> int:
    """0 when the old gate refuses and a new one works."""
    try:
        gate.acquire(ticket="f:1", reservation_tokens=5)
        return 1
    except kvgate.WrongProcess:
        pass
    except BaseException:
        return 2
    try:
        with Gate(urls) as own, own.admit(ticket="f:2", reservation_tokens=5) as grant:
            return 0 if grant.admitted else 3
    except BaseException:
        return 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_after_a_fork_the_asyncio_gate_says_so(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate, gate.admit(ticket="g:0", reservation_tokens=5):
        child = os.fork()
        if child == 0:
            try:
                gate._core_now()
                os._exit(1)
            except kvgate.WrongProcess:
                os._exit(0)
            finally:
                os._exit(2)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    assert single.nothing_left()


def test_an_interrupted_wait_leaves_nothing(single: Cluster) -> None:
    class Stop(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise Stop

    old = signal.signal(signal.SIGUSR1, stop)
    try:
        with Gate(single.urls) as gate, gate.admit(ticket="i:0", reservation_tokens=90_000):
            waiting = threading.Thread(target=_signal_once_waiting, args=(single,))
            waiting.start()
            with pytest.raises(Stop):
                gate.acquire(ticket="i:1", reservation_tokens=90_000)
            waiting.join()
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert single.nothing_left()


def _signal_once_waiting(single: Cluster) -> None:
    eventually(lambda: single.budget()["waiting"] != "0", "a ticket waits")
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


async def test_a_step_without_metrics_is_no_step() -> None:
    async with server(says(b"")) as url, AsyncGate(url) as gate:
        with pytest.raises(kvgate.CallFailed, match="without metrics"):
            await gate.drain_step(1)
