"""Releases and cancels that run in the background until their outcome is known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ._failure import Failure
from ._tickets import TicketKey
from .stats import Event
from .v1 import admission_pb2 as pb

if TYPE_CHECKING:
    from ._core import Core

# How much longer than a foreground call's the pauses of background calls may get.
SLOWER = 5


@dataclass
class Step:
    """One call of a settlement."""

    attempt: Callable[[], Awaitable[None]]
    # Called with how many tries it took, when one was answered.
    known: Callable[[int], None] = lambda _: None
    # Called when no answer came in time.
    unknown: Callable[[], None] = lambda: None
    # Whether the steps before have done it already.
    needless: Callable[[], bool] = lambda: False


@dataclass
class Settlement:
    """What is still to be told about a ticket, and until when that matters."""

    key: TicketKey
    # Monotonic time when there is nothing left to settle: the end of the lease.
    until: float
    steps: list[Step]
    done: asyncio.Event = field(default_factory=asyncio.Event)
    error: Failure | None = None


class Settler:
    """Carries settlements out."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def start(self, s: Settlement) -> None:
        """Starts a settlement, whose ticket tickets.leave or tickets.release put into the settling state."""
        if not self._core.settlements.start(self._run(s), "kvgate-settle"):
            self._finish(s, Failure("the gate is closed"))

    async def _run(self, s: Settlement) -> None:
        failed: Failure | None = Failure("the gate was closed before the outcome was known")
        try:
            retried = Event("release_retry", pool=s.key.pool, ticket=s.key.ticket)
            outcomes = [await self.persist(retried, s.until, step) for step in s.steps if not step.needless()]
            failed = next((f for f in outcomes if f is not None), None)
        finally:
            self._finish(s, failed)

    def _finish(self, s: Settlement, failure: Failure | None) -> None:
        s.error = failure
        if failure is not None:
            self._core.recorder.record(Event("unsettled", pool=s.key.pool, ticket=s.key.ticket, error=failure))
            self._core.logs.unsettled.warn(pool=s.key.pool, ticket=s.key.ticket, error=str(failure))
        self._core.tickets.settled(s.key)
        s.done.set()

    async def persist(self, retried: Event, until: float, step: Step) -> Failure | None:
        """Repeats one step until it is answered or its time is over; each repetition is recorded as retried."""
        pauses = self._core.tries.pauses(SLOWER * self._core.options.retry_longest)
        tries = 0
        try:
            while True:
                tries += 1
                try:
                    await step.attempt()
                except Failure as failure:
                    pause = pauses.next(failure.retry_after)
                    if not failure.worth_repeating or time.monotonic() + pause >= until:
                        step.unknown()
                        return failure
                    self._core.recorder.record(replace(retried, error=failure))
                else:
                    step.known(tries)
                    return None
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            step.unknown()
            raise

    def cancel_step(self, key: TicketKey, ended: int) -> Step:
        """Makes sure that neither a waiter nor a lease of the ticket stays behind, and that copies of the call
        that are still under way get nothing when they arrive."""
        core = self._core
        msg = pb.CancelRequest(pool=key.pool, ticket_id=key.ticket, ended_call_id=ended)

        async def attempt() -> None:
            await core.courier.cancel(msg)

        def known(_: int) -> None:
            core.recorder.record(Event("cancelled", pool=key.pool, ticket=key.ticket))

        return Step(attempt, known)

    def release_steps(self, key: TicketKey, msg: pb.ReleaseRequest, ended: int) -> list[Step]:
        """End the lease, or the tracked bypass, that msg names, and with it a call of which copies may be
        under way; 0 is none. One release does both, unless it finds no lease."""
        core = self._core
        msg.ended_call_id = ended
        released = False

        async def attempt() -> None:
            nonlocal released
            released = (await core.courier.release(msg)).released

        def known(_: int) -> None:
            core.recorder.record(Event("released", pool=key.pool, ticket=key.ticket))

        steps = [Step(attempt, known)]
        if ended:
            cancel = self.cancel_step(key, ended)
            cancel.needless = lambda: released
            steps.append(cancel)
        return steps
