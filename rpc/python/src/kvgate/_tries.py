"""Tries, pauses between them, and calls that are repeated until they are answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message

from ._endpoints import Endpoint, Endpoints
from ._failure import Failure, Verdict
from ._options import Options
from ._transport import CONNECT_TIMEOUT, Transport
from .errors import GateClosed
from .stats import Event, RareLog, Recorder

M = TypeVar("M", bound=Message)
T = TypeVar("T")

# Bounds what a coordinator may ask a client to pause.
MAX_RETRY_AFTER = 5.0


def _any(_: object) -> None:
    """Accepts every answer."""


class Pauses:
    """How long to wait before each retry: next to nothing while endpoints are left that the call has not
    tried, then exponentially longer after each round over them. All with jitter, so that the waiters of
    a dead leader do not arrive at one follower together."""

    def __init__(self, first: float, longest: float, endpoints: int) -> None:
        self._first = first
        self._next = first
        self._longest = longest
        self._round = endpoints
        self._tries = 0

    def next(self, retry_after: float = 0.0) -> float:
        """Seconds to pause after a try that failed; retry_after is what the coordinator asked for."""
        self._tries += 1
        if self._tries % self._round != 0:
            return random.uniform(0, self._first)
        pause = random.uniform(0.5, 1.5) * self._next
        self._next = min(self._next * 2, self._longest)
        return max(pause, min(retry_after, MAX_RETRY_AFTER))


class Tries:
    """Makes single tries against the endpoint that works now, and draws the conclusions for the next."""

    def __init__(self, options: Options, endpoints: Endpoints, transport: Transport, recorder: Recorder) -> None:
        self.options = options
        self.endpoints = endpoints
        self.transport = transport
        self.recorder = recorder
        self._trouble = RareLog("kvgate endpoint does not serve, trying the next")

    def pauses(self, longest: float | None = None) -> Pauses:
        """The pauses of one call."""
        o = self.options
        return Pauses(o.retry_first, longest or o.retry_longest, len(self.endpoints.all))

    async def once(self, method: str, request: Message, answer: type[M], timeout: float) -> M:
        """One try of a call on the endpoint that works now. Raises Failure."""
        return await self.on(self.endpoints.pick(), method, request, answer, timeout)

    async def on(
        self,
        endpoint: Endpoint,
        method: str,
        request: Message,
        answer: type[M],
        timeout: float,
        check: Callable[[M], None] = _any,
        connect: float = CONNECT_TIMEOUT,
    ) -> M:
        """One try of a call on one endpoint. Raises Failure, as check does for an answer that is nonsense."""
        try:
            got, leader = await self.transport.call(endpoint.url, method, request, answer, timeout, connect)
            check(got)
        except Failure as failure:
            self.failed(endpoint, failure)
            raise
        self.endpoints.worked(endpoint)
        if leader:
            self.endpoints.follow(leader)
        return got

    def failed(self, endpoint: Endpoint, failure: Failure) -> None:
        """Notes that a try on an endpoint failed."""
        if failure.verdict is not Verdict.RETRYABLE:
            self.endpoints.worked(endpoint)
            return
        self.endpoints.failed(endpoint, failure.leader_hint)
        self._trouble.warn(endpoint=endpoint.url, error=str(failure))

    async def call(self, method: str, request: Message, answer: type[M], *, brief: bool = False) -> M:
        """An idempotent call that does not wait, with retries for the call budget. Raises KvgateError.

        brief: a rollout waits for it, so it has the decision budget only, and one round while the cluster
        is known to be down.
        """
        budget = self.options.decision_budget if brief else self.options.call_budget
        timeout = min(self.options.attempt_timeout, budget)
        try:
            return await self._repeat(lambda: self.once(method, request, answer, timeout), budget, brief)
        except Failure as failure:
            self.recorder.record(Event("error", error=failure))
            if self.transport.closed:
                raise GateClosed("the gate was closed", code="canceled") from failure
            raise failure.public() from failure

    async def _repeat(self, attempt: Callable[[], Awaitable[T]], budget: float, brief: bool) -> T:
        end = time.monotonic() + budget
        pauses = self.pauses()
        tries = 0
        while True:
            try:
                return await attempt()
            except Failure as failure:
                pause = pauses.next(failure.retry_after)
                tries += 1
                hopeless = brief and self.endpoints.down and tries >= len(self.endpoints.all)
                if failure.verdict is not Verdict.RETRYABLE or self.transport.closed:
                    raise
                if hopeless or time.monotonic() + pause >= end:
                    self.endpoints.down = True
                    raise
                self.recorder.record(Event("retry", error=failure))
            await asyncio.sleep(pause)
