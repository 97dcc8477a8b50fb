"""One acquire over all its tries."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ._courier import Flight
from ._failure import Failure, Verdict
from ._tickets import TicketKey
from .grant import Decision, seconds
from .v1 import admission_pb2 as pb
from .v1 import types_pb2

if TYPE_CHECKING:
    from ._core import Core


class Acquisition:
    """Tries until there is a decision, an error that further tries cannot change, or no time left."""

    def __init__(self, core: Core, msg: pb.AcquireRequest) -> None:
        self._core = core
        self.msg = msg
        self.key = TicketKey(msg.pool, msg.ticket_id)
        self.max_wait = seconds(msg.max_wait) if msg.HasField("max_wait") else core.options.default_max_wait
        self.started = time.monotonic()
        # When the gate decides by itself.
        self.deadline = self.started + self.max_wait + core.options.decision_budget
        # The ticket was registered with core.tickets.
        self.entered = False
        self.tries = 0
        # A try may have left a waiter or a lease behind, or may yet be carried out.
        self.dirty = False
        # A try was known, or open long enough, to have been waiting.
        self.queued = False
        self._failing_since: float | None = None

    @property
    def ttl(self) -> float:
        """How long a lease of it lasts, as far as the gate knows."""
        return seconds(self.msg.ttl) if self.msg.HasField("ttl") else self._core.options.default_ttl

    async def run(self) -> pb.AcquireResponse:
        """Returns the coordinator's decision. Raises Failure."""
        await self._enter()
        pauses = self._core.tries.pauses()
        while True:
            try:
                answer = await self._try()
            except Failure as failure:
                pause = pauses.next(failure.retry_after)
                if failure.verdict is not Verdict.RETRYABLE or self._hopeless(pause):
                    raise
                self._core.note_retry(self.key, failure)
                await asyncio.sleep(pause)
                continue
            self.dirty = self.dirty or _untracked(answer)
            return answer

    async def _enter(self) -> None:
        """Waits until the gate's own release or cancel of the ticket is known."""
        while (pending := self._core.tickets.try_enter(self.key)) is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise Failure("an earlier release or cancel of the ticket is not known yet", code="deadline_exceeded")
            waiting = asyncio.ensure_future(pending.wait())
            try:
                await asyncio.wait({waiting}, timeout=left)
            finally:
                waiting.cancel()
        self.entered = True
        self.msg.call_id = self._core.tickets.call(self.key)

    async def _try(self) -> pb.AcquireResponse:
        """Asks once and notes what a failure means for the ticket."""
        msg, left = self._attempt()
        timeout = min(left + self._core.options.decision_budget * 5 / 6, self.deadline - time.monotonic())
        self.tries += 1
        flight = Flight()
        try:
            answer = await self._core.courier.acquire(msg, max(timeout, 0.001), flight)
        except Failure:
            if self._failing_since is None:
                self._failing_since = time.monotonic()
            raise
        finally:
            self.dirty = self.dirty or flight.uncertain
            self.queued = self.queued or flight.queued
        return answer

    def _attempt(self) -> tuple[pb.AcquireRequest, float]:
        """The message of the next try and how long it may wait.

        Retries send what is left of the max wait, so that a ticket that comes back after a failover never
        waits longer than it asked for.
        """
        if self.tries == 0:
            return self.msg, self.max_wait
        left = max(self.max_wait - (time.monotonic() - self.started), 0.0)
        msg = pb.AcquireRequest()
        msg.CopyFrom(self.msg)
        msg.max_wait.FromNanoseconds(int(left * 1e9))
        return msg, left

    def _hopeless(self, pause: float) -> bool:
        """Whether no further try is made after one that failed.

        A ticket that waited already keeps asking until its time is up; a new one does so only for the
        decision budget, and, while the whole cluster is known to be down, for one round over the endpoints.
        """
        now = time.monotonic()
        if now + pause >= self.deadline:
            return True
        if self.queued:
            return False
        if self._core.endpoints.down:
            return self.tries >= len(self._core.endpoints.all)
        since = self._failing_since if self._failing_since is not None else now
        return now - since >= self._core.options.decision_budget

    def degraded(self, cause: BaseException) -> Decision:
        """The gate's own decision to let the attempt go ahead."""
        asked = self.msg.reservation_tokens or self.msg.prompt_tokens + self.msg.max_new_tokens
        return Decision("bypass", "degraded", self.key.pool, self.key.ticket, asked, cause=cause)


def _untracked(answer: pb.AcquireResponse) -> bool:
    """Whether a node let the ticket through by itself, because it did not hear what the leader decided.

    It may have been admitted all the same.
    """
    return answer.action == types_pb2.ACTION_BYPASS and any(w.startswith("untracked") for w in answer.warnings)
