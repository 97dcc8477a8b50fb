"""What a session tells the coordinator, whatever happens inside."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from google.protobuf.message import Message

import kvgate
from fake import fake
from kvgate import AsyncGate
from kvgate.v1 import session_pb2 as pb


@dataclass
class Sessions:
    """Answers session calls and remembers them."""

    open_fails: str = ""
    close_failures: int = 0
    opened: list[pb.OpenSessionRequest] = field(default_factory=list)
    closed: list[pb.CloseSessionRequest] = field(default_factory=list)

    def __call__(self, method: str, body: bytes) -> Message | str:
        if method == "SessionService/OpenSession":
            self.opened.append(pb.OpenSessionRequest.FromString(body))
            return self.open_fails or pb.OpenSessionResponse(warnings=["session_id_reused"])
        if method == "SessionService/CloseSession":
            self.closed.append(pb.CloseSessionRequest.FromString(body))
            return "unavailable" if len(self.closed) <= self.close_failures else pb.CloseSessionResponse()
        return "unimplemented"


async def test_opens_and_closes_with_join() -> None:
    said = Sessions()
    async with fake(said) as url, AsyncGate(url) as gate:
        async with gate.session("s", group="g", kind="bind", idle_timeout=60) as session:
            assert (session.opened, session.warnings) == (True, ("session_id_reused",))
            assert said.closed == []
    [opened], [closed] = said.opened, said.closed
    assert (opened.session_id, opened.group_id, opened.kind) == ("s", "g", pb.SESSION_KIND_BIND)
    assert opened.idle_timeout.seconds == 60
    assert (closed.session_id, closed.mode) == ("s", pb.CLOSE_MODE_JOIN)
    assert gate.stats().session_failures == 0


@pytest.mark.parametrize(("abort", "mode"), [(True, pb.CLOSE_MODE_ABORT), (False, pb.CLOSE_MODE_JOIN)])
async def test_an_exception_aborts_if_asked(abort: bool, mode: int) -> None:
    said = Sessions()
    async with fake(said) as url, AsyncGate(url) as gate:
        with pytest.raises(ZeroDivisionError):
            async with gate.session("s", abort_on_error=abort):
                raise ZeroDivisionError
    assert [c.mode for c in said.closed] == [mode]


async def test_a_cancelled_body_closes_too() -> None:
    said, inside = Sessions(), asyncio.Event()

    async def body(gate: AsyncGate) -> None:
        async with gate.session("s"):
            inside.set()
            await asyncio.Event().wait()

    async with fake(said) as url, AsyncGate(url) as gate:
        task = asyncio.ensure_future(body(gate))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(said.closed) == 1


async def test_a_close_is_repeated_until_it_is_known() -> None:
    said = Sessions(close_failures=3)
    async with fake(said) as url, AsyncGate(url, retry_first=0.01) as gate:
        async with gate.session("s", wait_closed=5):
            pass
        assert len(said.closed) == 4
    assert (gate.stats().close_retries, gate.stats().sessions_closed, gate.stats().closes_lost) == (3, 1, 0)


async def test_a_coordinator_without_sessions_stops_nobody() -> None:
    async with fake(lambda method, body: "unimplemented") as url, AsyncGate(url) as gate:
        async with gate.session("s") as session:
            assert not session.opened
    assert (gate.stats().session_failures, gate.stats().closes_lost) == (1, 1)


async def test_a_refusal_that_the_caller_can_change_raises() -> None:
    async with fake(Sessions(open_fails="invalid_argument")) as url, AsyncGate(url) as gate:
        with pytest.raises(kvgate.InvalidArgument):
            async with gate.session("s"):
                pass
        with pytest.raises(kvgate.InvalidArgument) as raised:
            gate.session("s", kind="streaming")
        assert raised.value.field == "engineUrl"
        with pytest.raises(kvgate.InvalidArgument) as raised:
            gate.session("")
        assert raised.value.field == "sessionId"
