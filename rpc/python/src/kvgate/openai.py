"""Admits every call of an OpenAI-compatible asyncio client, and reports what it used.

    client = admitted(AsyncOpenAI(base_url=..., api_key=...), gate)
    reply = await client.chat.completions.create(model=..., messages=..., max_tokens=256)

Nothing here imports the openai package: whatever has `chat.completions.create` or `completions.create` as
coroutine functions will do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .gate import AsyncGate
from .grant import Grant
from .reservation import Reservation
from .session import Session

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._request import AdmitArgs

# The methods that generate; the rest of the client is passed through.
_GENERATES = frozenset({"create", "parse"})
_HOLDS = frozenset({"chat", "completions"})


def admitted(client: Any, gate: AsyncGate | Session, *, tag: bool = True, **args: Any) -> Any:
    """The client with admission around `chat.completions.create`, its `parse`, and `completions.create`.

    gate is a gate, or a session of one: its calls then belong to that session. args are those of
    `AsyncGate.admit` but ticket and tokens, e.g. group, mode, priority or max_wait. A call may carry a
    keyword `ticket`, its name for this attempt; else each gets one of its own. tag sends what SGLang reads:
    `rid` (the ticket) and, within a session, `session_id`, in the request's extra_body.

    What goes round those three, such as `with_raw_response` or `responses`, is not admitted.

    The reservation is estimated from the request by `gate.estimator`, which learns from the usage that the
    answers report. A stream holds its lease until it is read to the end or closed.
    """
    return _Client(client, _Admitter(gate, tag, args))


class _Admitter:
    """How the calls of one wrapped client are admitted."""

    def __init__(self, gate: AsyncGate | Session, tag: bool, args: Mapping[str, Any]) -> None:
        self.session = gate.id if isinstance(gate, Session) else str(args.get("session", ""))
        self.gate = gate._gate if isinstance(gate, Session) else gate
        self._admit = gate.admit
        self._tag = tag
        self._args = args
        self._prefix = self.session[:200] or "openai"
        self._run = uuid.uuid4().hex[:8]
        self._count = itertools.count()

    async def call(self, create: Any, positional: tuple[Any, ...], request: dict[str, Any]) -> Any:
        """One admitted call."""
        ticket = request.pop("ticket", None) or f"{self._prefix}:{self._run}-{next(self._count)}"
        reservation = self.gate.estimator.estimate(request, self.session)
        if self._tag:
            request["extra_body"] = self._tagged(ticket, request.get("extra_body"))
        if request.get("stream"):
            return await self._stream(create, positional, request, ticket, reservation)
        args: AdmitArgs = {**self._args, "ticket": ticket, "reservation": reservation}  # type: ignore[typeddict-item]
        async with self._admit(**args) as grant:
            answer = await create(*positional, **request)
            self.report(grant, request, answer)
            return answer

    async def _stream(
        self, create: Any, positional: tuple[Any, ...], request: dict[str, Any], ticket: str, reservation: Reservation
    ) -> Any:
        options = dict(request.get("stream_options") or {})
        wanted = bool(options.get("include_usage"))
        request["stream_options"] = {**options, "include_usage": True}
        args: AdmitArgs = {**self._args, "ticket": ticket, "reservation": reservation}  # type: ignore[typeddict-item]
        grant = await self._admit(**args)
        try:
            stream = await create(*positional, **request)
        except BaseException:
            grant.usage(outcome="error")
            grant.release()
            raise
        return _Stream(stream, self, grant, request, wanted)

    def _tagged(self, ticket: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
        body = dict(given or {})
        body.setdefault("rid", ticket)
        if self.session:
            body.setdefault("session_id", self.session)
        return body

    def report(self, grant: Grant, request: Mapping[str, Any], answer: Any) -> None:
        """Passes on what an answer, or a chunk of one, says about usage."""
        used = getattr(answer, "usage", None)
        prompt = _count(used, "prompt_tokens")
        details = getattr(used, "prompt_tokens_details", None)
        if used is None:
            return
        choices = getattr(answer, "choices", None) or [None]
        grant.usage(
            prompt_tokens=prompt,
            completion_tokens=_count(used, "completion_tokens"),
            cached_tokens=_count(details, "cached_tokens"),
            outcome=str(getattr(choices[0], "finish_reason", None) or "")[:64],
        )
        self.gate.estimator.learn(request, prompt, self.session)


def _count(usage: Any, name: str) -> int:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) and value > 0 else 0


class _Client:
    """Stands for the client, or for `client.chat` or `client.completions`."""

    def __init__(self, inner: Any, admitter: _Admitter) -> None:
        self._inner = inner
        self._admitter = admitter

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name in _HOLDS:
            return _Client(value, self._admitter)
        if name in _GENERATES and callable(value):
            return self._generate(value)
        return value

    def _generate(self, create: Any) -> Any:
        async def call(*positional: Any, **request: Any) -> Any:
            return await self._admitter.call(create, positional, request)

        return call

    def with_options(self, **options: Any) -> Any:
        """The wrapped client with other options."""
        return _Client(self._inner.with_options(**options), self._admitter)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)


class _Stream:
    """A stream of chunks that holds its lease until it ends."""

    def __init__(
        self, inner: Any, admitter: _Admitter, grant: Grant, request: Mapping[str, Any], usage_wanted: bool
    ) -> None:
        self._inner = inner
        self._grant = grant
        self._loop = asyncio.get_running_loop()
        # Without a reference to this stream, so that it goes as soon as its user drops it.
        self._chunks = _read(inner, admitter, grant, request, usage_wanted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._chunks

    async def __anext__(self) -> Any:
        return await self._chunks.__anext__()

    def __del__(self) -> None:
        # Dropped without a look: nobody else would end the lease.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._grant.release)

    async def close(self) -> None:
        """Ends the stream and its lease."""
        try:
            await self._inner.close()
        finally:
            self._grant.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _read(
    inner: Any, admitter: _Admitter, grant: Grant, request: Mapping[str, Any], usage_wanted: bool
) -> AsyncIterator[Any]:
    """Passes the chunks of a stream on, and ends its lease after the last."""
    try:
        async for chunk in inner:
            admitter.report(grant, request, chunk)
            # The chunk that only tells the usage is for those who asked for it.
            if usage_wanted or getattr(chunk, "choices", None):
                yield chunk
    except BaseException:
        grant.usage(outcome="abort")
        raise
    finally:
        grant.release()
