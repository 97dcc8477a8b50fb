"""The OpenAI wrapper with the real client against a simulated engine, and the example."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from cluster import Cluster, aeventually
from kvgate import AsyncGate
from kvgate.openai import admitted

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

        stream = await wrapped.chat.completions.create(ticket="stream:3", stream=True, **ASK)
        assert not single.nothing_left()
        inner = stream._inner
        del stream
        await aeventually(single.nothing_left, "the lease of a stream that nobody read stays")
        await inner.close()
    assert usage(single, "stream:0")["detail"]


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
