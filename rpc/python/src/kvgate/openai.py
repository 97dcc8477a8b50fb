"""Admits every call of an OpenAI-compatible asyncio client, and reports what it used.

    client = admitted(AsyncOpenAI(base_url=..., api_key=...), gate)
    reply = await client.chat.completions.create(model=..., messages=..., max_tokens=256)

Nothing here imports the openai package: whatever has `chat.completions.create` or `completions.create` as
coroutine functions will do.
"""

from __future__ import annotations

import inspect
import itertools
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._options import MAX_TOKENS
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
        # Leaves room for the rest within the 256 bytes of a ticket.
        self._prefix = self.session.encode()[:200].decode(errors="ignore") or "openai"
        self._run = uuid.uuid4().hex[:8]
        self._count = itertools.count()

    async def call(self, create: Any, positional: tuple[Any, ...], request: dict[str, Any]) -> Any:
        """One admitted call."""
        # SGLang aborts by the beginning of a rid: with the dot none is the beginning of another.
        ticket = request.pop("ticket", None) or f"{self._prefix}:{self._run}-{next(self._count)}."
        if isinstance(request.get("messages"), Iterator):
            request["messages"] = list(request["messages"])  # it is read twice: to estimate, and to send
        reservation = self.gate.estimator.estimate(request, self.session)
        if self._tag:
            request["extra_body"] = self._tagged(ticket, request.get("extra_body"))
        if request.get("stream"):
            return await self._stream(create, positional, request, ticket, reservation)
        args: AdmitArgs = {**self._args, "ticket": ticket, "reservation": reservation}  # type: ignore[typeddict-item]
        async with self._admit(**args) as grant:
            answer = await _started(create(*positional, **request))
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
            stream = await _started(create(*positional, **request))
        except BaseException as e:
            grant.usage(outcome=_outcome(e))
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
            outcome=_short(str(getattr(choices[0], "finish_reason", None) or "")),
        )
        self.gate.estimator.learn(request, prompt, self.session)


def _count(usage: Any, name: str) -> int:
    """What an engine counted; its nonsense must not raise in the rollout."""
    value = getattr(usage, name, None)
    return value if isinstance(value, int) and 0 < value <= MAX_TOKENS else 0


def _short(text: str) -> str:
    """At most the 64 bytes that an outcome may have."""
    return text.encode(errors="replace")[:64].decode(errors="ignore")


def _outcome(e: BaseException) -> str:
    """What a call that ended with an exception is reported as."""
    return "error" if isinstance(e, Exception) else "abort"


def _started(answer: Any) -> Any:
    """What a method of the client returned, to be awaited."""
    if not inspect.isawaitable(answer):
        raise TypeError("admitted() needs an asyncio client such as AsyncOpenAI: this one's calls are not awaitable")
    return answer


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

    def copy(self, **options: Any) -> Any:
        """The same by its other name."""
        return _Client(self._inner.copy(**options), self._admitter)

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
        # Without a reference to this stream, so that it goes as soon as its user drops it.
        self._chunks = _read(inner, admitter, grant, request, usage_wanted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> Self:
        # Not the chunks: in `async for c in await create(...)` the loop is all that holds this stream.
        return self

    async def __anext__(self) -> Any:
        return await self._chunks.__anext__()

    def __del__(self) -> None:
        # Dropped without a look, or in the middle: nobody else would end the lease now.
        self._grant._core.release_soon(self._grant._held)

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
    except BaseException as e:
        if grant._held.usage is None:
            grant.usage(outcome=_outcome(e))
        raise
    finally:
        grant.release()
