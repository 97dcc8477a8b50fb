"""The OpenAI wrapper with the real client against a simulated engine, and the example."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import pytest_asyncio

from cluster import Cluster, aeventually
from fake import fake
from kvgate import AsyncGate
from kvgate.openai import admitted
from kvgate.v1 import admission_pb2 as pb
from kvgate.v1 import types_pb2

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ASK: Any = {"model": "default", "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 32}


@pytest_asyncio.fixture
async def client(single: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{single.engine_url}/v1", api_key="none", max_retries=0) as c:
        yield c


def usage(single: Cluster, ticket: str) -> dict[str, Any]:
    """What the journal keeps of a ticket's reported usage."""
    [event] = [e for e in single.journal("released") if e["ticketId"].startswith(ticket)]
    return event


async def test_admits_and_reports_usage(single: Cluster, client: openai.AsyncOpenAI) -> None:
    async with AsyncGate(single.urls) as gate:
        reply = await admitted(client, gate).chat.completions.create(ticket="ask:0", **ASK)
        assert reply.choices[0].message.content
    assert gate.stats().admitted == 1
    detail = usage(single, "ask:0")["detail"]
    assert str(reply.usage.prompt_tokens) in detail
    assert str(reply.usage.completion_tokens) in detail


async def test_the_lease_is_held_while_a_stream_runs(single: Cluster, client: openai.AsyncOpenAI) -> None:
    async with AsyncGate(single.urls) as gate:
        wrapped = admitted(client, gate)
        stream = await wrapped.chat.completions.create(ticket="stream:0", stream=True, **ASK)
        chunks = 0
        async for chunk in stream:
            if chunks == 0:
                assert [lease.ticket_id for lease in await gate.leases()] == ["stream:0"]
            # The chunk with the usage was not asked for, so it is not seen.
            assert chunk.choices
            chunks += 1
        assert chunks > 1
        await aeventually(single.nothing_left, "the lease stays after the stream's end")

        stream = await wrapped.chat.completions.create(
            ticket="stream:1", stream=True, stream_options={"include_usage": True}, **ASK
        )
        assert [c async for c in stream][-1].usage.completion_tokens > 0

        async with await wrapped.chat.completions.create(ticket="stream:2", stream=True, **ASK) as stream:
            await stream.__anext__()
        await aeventually(single.nothing_left, "the lease stays after an early close")

        kept = 0
        async for _ in await wrapped.chat.completions.create(ticket="stream:4", stream=True, **ASK):
            # Nothing but the loop holds the stream.
            gc.collect()
            kept += [lease.ticket_id for lease in await gate.leases()] == ["stream:4"]
        assert kept > 1
        await aeventually(single.nothing_left, "the lease stays after the loop")

        stream = await wrapped.chat.completions.create(ticket="stream:3", stream=True, **ASK)
        assert not single.nothing_left()
        inner = stream._inner
        del stream
        await aeventually(single.nothing_left, "the lease of a stream that nobody read stays")
        await inner.close()
    assert gate.stats().dropped == 0
    assert usage(single, "stream:0")["detail"]
    assert usage(single, "stream:4")["detail"]


async def test_a_call_that_fails_gives_its_lease_back(single: Cluster, client: openai.AsyncOpenAI) -> None:
    async with AsyncGate(single.urls) as gate:
        wrapped = admitted(client, gate)
        for more in ({}, {"stream": True}):
            with pytest.raises(openai.APIStatusError):
                await wrapped.chat.completions.create(**{**ASK, **more, "messages": []})
    assert gate.stats().admitted == 2
    assert single.nothing_left()


async def test_a_session_is_tagged_and_learnt(single: Cluster, client: openai.AsyncOpenAI) -> None:
    async with AsyncGate(single.urls) as gate, gate.session("wrapped") as session:
        wrapped = admitted(client, session)
        reply = await wrapped.chat.completions.create(**ASK)
        estimate = gate.estimator.estimate(ASK, "wrapped")
        assert estimate.prompt_tokens == reply.usage.prompt_tokens
        used = reply.usage.prompt_tokens + reply.usage.completion_tokens

        def told() -> bool:
            told = single.any_node().rpc("SessionService/GetSession", sessionId="wrapped")["session"]
            return [told["turns"], told["footprintTokens"]] == ["1", str(used)]

        await aeventually(told, "the session's turn is not counted")


class Answers:
    """An OpenAI-like client whose calls answer at once, and what it was asked."""

    def __init__(self, *, usage: Any = None, blocking: bool = False, raises: BaseException | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.chat = self.completions = self
        self._usage, self._blocking, self._raises = usage, blocking, raises

    def create(self, **request: Any) -> Any:
        self.asked.append(request)
        choice = SimpleNamespace(finish_reason="é" * 80)
        answer = SimpleNamespace(usage=self._usage, choices=[choice])

        async def later() -> Any:
            if self._raises is not None:
                raise self._raises
            return answer

        return answer if self._blocking else later()

    def copy(self, **options: Any) -> Answers:
        return self


async def test_long_session_ids_and_rids_that_begin_no_other(single: Cluster) -> None:
    inner = Answers()
    async with AsyncGate(single.urls) as gate:
        for session in ("é" * 128, "x" * 256, "\U0001f600" * 64):
            wrapped = admitted(inner, gate, session=session)
            for _ in range(12):
                await wrapped.chat.completions.create(**ASK)
    rids = [request["extra_body"]["rid"] for request in inner.asked]
    assert all(len(rid.encode()) <= 256 for rid in rids)
    assert not [(a, b) for a in rids for b in rids if a != b and b.startswith(a)]
    assert gate.stats().admitted + sum(gate.stats().bypassed.values()) == 36


async def test_what_a_client_says_never_raises(single: Cluster) -> None:
    usage = SimpleNamespace(prompt_tokens=10**30, completion_tokens=-4, prompt_tokens_details="none")
    inner = Answers(usage=usage)
    async with AsyncGate(single.urls) as gate:
        assert (await admitted(inner, gate).copy().chat.completions.create(**ASK)).usage is usage
    assert gate.stats().released == 1


async def test_messages_that_can_be_read_once_are_sent(single: Cluster) -> None:
    inner = Answers()
    async with AsyncGate(single.urls) as gate:
        await admitted(inner, gate).chat.completions.create(**{**ASK, "messages": iter(ASK["messages"])})
    assert inner.asked[0]["messages"] == ASK["messages"]


async def test_a_client_that_blocks_is_refused(single: Cluster) -> None:
    async with AsyncGate(single.urls) as gate:
        with pytest.raises(TypeError, match="AsyncOpenAI"):
            await admitted(Answers(blocking=True), gate).chat.completions.create(**ASK)
    assert single.nothing_left()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("raises", "outcome"), [(asyncio.CancelledError(), "abort"), (OSError(), "error")])
async def test_how_a_call_ended_is_reported(raises: BaseException, outcome: str, stream: bool) -> None:
    releases: list[pb.ReleaseRequest] = []

    def answer(method: str, body: bytes) -> pb.AcquireResponse | pb.ReleaseResponse | str:
        if method == "AdmissionService/Acquire":
            ticket = pb.AcquireRequest.FromString(body).ticket_id
            return pb.AcquireResponse(action=types_pb2.ACTION_ADMIT, ticket_id=ticket, lease_id="1")
        if method == "AdmissionService/Release":
            releases.append(pb.ReleaseRequest.FromString(body))
            return pb.ReleaseResponse(released=True)
        return "unimplemented"

    async with fake(answer) as url, AsyncGate(url, multiplex=False) as gate:
        with pytest.raises(type(raises)):
            await admitted(Answers(raises=raises), gate).chat.completions.create(stream=stream, **ASK)
    assert [release.usage.outcome for release in releases] == [outcome]


async def test_everything_else_is_the_client_itself(single: Cluster, client: openai.AsyncOpenAI) -> None:
    async with AsyncGate(single.urls) as gate:
        wrapped = admitted(client, gate)
        assert wrapped.base_url == client.base_url
        assert await wrapped.with_options(timeout=7).chat.completions.create(**ASK)
    assert gate.stats().admitted == 1


async def test_the_example_runs(single: Cluster, tmp_path: Path) -> None:
    source = (EXAMPLES / "rollout.py").read_text()
    [url] = single.urls
    assert source.count("http://127.0.0.1:7070") == 1
    script = tmp_path / "rollout.py"
    script.write_text(source.replace("http://127.0.0.1:7070", url))
    command = [sys.executable, str(script), single.engine_url]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=120, env=dict(os.environ), check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("32 agents generated ")
    assert done.stderr == ""
    await aeventually(single.nothing_left, "leases stay")
    closed = {e["sessionId"] for e in single.journal("session_closing")}
    assert {f"agent-{n}" for n in range(32)} <= closed
