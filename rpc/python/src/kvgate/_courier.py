"""Brings acquires, releases and cancels to the coordinator: multiplexed where it can, else one call each."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from ._failure import Failure, Verdict, nonsense
from ._mux import Mux, Unsupported
from ._tasks import Tasks
from ._tries import Tries
from .v1 import admission_pb2 as pb
from .v1 import types_pb2

M = TypeVar("M", bound=Message)

# A unary try that was open for so long was most likely waiting in the queue, so the ticket has a place
# worth coming back to.
QUEUED_AFTER = 0.5
# Bounds the background calls in flight where each is one of its own.
PARALLEL = 64


@dataclass
class Flight:
    """How far one try came, whatever became of it."""

    # Somebody may have seen it, and its outcome is not known.
    uncertain: bool = False
    # The ticket waited.
    queued: bool = False


class Courier:
    """One try of each call. Raises Failure."""

    def __init__(self, tries: Tries, tasks: Tasks, holder: str | None, *, multiplex: bool) -> None:
        self._tries = tries
        # Waiters of one Submit are kept by their holder, so without one there is no multiplexing.
        self._mux = Mux(tries, tasks, holder) if multiplex and holder else None
        self._slots = asyncio.Semaphore(PARALLEL)

    async def acquire(self, msg: pb.AcquireRequest, timeout: float, flight: Flight) -> pb.AcquireResponse:
        """Asks for a decision and waits for it, at most timeout seconds; flight is filled in as it goes."""
        channel = self._mux.channel() if self._mux else None
        if self._mux and channel:
            op = self._mux.op(pb.ExchangeRequest(acquire=msg))
            uncertain = True
            try:
                answer = (await self._mux.run(channel, op, timeout)).acquire
                _check(msg, answer)
                uncertain = False
                return answer
            except Unsupported:
                uncertain = False
            except Failure as failure:
                uncertain = failure.verdict is Verdict.RETRYABLE and not failure.not_sent
                if op.sent:
                    self._tries.failed(channel.endpoint, failure)
                raise
            finally:
                flight.uncertain, flight.queued = op.sent and uncertain, op.queued
        return await self._acquire_alone(msg, timeout, flight)

    async def _acquire_alone(self, msg: pb.AcquireRequest, timeout: float, flight: Flight) -> pb.AcquireResponse:
        began = time.monotonic()
        flight.uncertain = True
        try:
            answer = await self._tries.on(
                self._tries.endpoints.pick(),
                "AdmissionService/Acquire",
                msg,
                pb.AcquireResponse,
                timeout,
                lambda a: _check(msg, a),
                # Hundreds of tickets that ask at once make hundreds of connections, which takes a while.
                self._tries.options.attempt_timeout,
            )
        except Failure as failure:
            flight.uncertain = failure.verdict is Verdict.RETRYABLE and not failure.not_sent
            flight.queued = flight.uncertain and time.monotonic() - began >= QUEUED_AFTER
            raise
        flight.uncertain = False
        return answer

    async def release(self, msg: pb.ReleaseRequest) -> pb.ReleaseResponse:
        """Ends a lease."""
        result = await self._at_once(pb.ExchangeRequest(release=msg))
        return result.release if result else await self._alone("Release", msg, pb.ReleaseResponse)

    async def cancel(self, msg: pb.CancelRequest) -> pb.CancelResponse:
        """Takes a ticket out, wherever it is."""
        result = await self._at_once(pb.ExchangeRequest(cancel=msg))
        return result.cancel if result else await self._alone("Cancel", msg, pb.CancelResponse)

    async def _at_once(self, request: pb.ExchangeRequest) -> pb.ExchangeResponse | None:
        """An operation that does not wait, multiplexed; None when that is not to be had."""
        channel = self._mux.channel() if self._mux else None
        if not self._mux or not channel:
            return None
        try:
            # Twice the time of one call: another batch may be under way.
            return await self._mux.run(channel, self._mux.op(request), 2 * self._tries.options.attempt_timeout)
        except Unsupported:
            return None

    async def _alone(self, name: str, msg: Message, answer: type[M]) -> M:
        async with self._slots:
            timeout = self._tries.options.attempt_timeout
            return await self._tries.once(f"AdmissionService/{name}", msg, answer, timeout)


def _check(msg: pb.AcquireRequest, answer: pb.AcquireResponse) -> None:
    """Refuses answers that no coordinator gives."""
    if answer.action not in (types_pb2.ACTION_ADMIT, types_pb2.ACTION_BYPASS):
        raise nonsense(f"action is {answer.action}")
    if answer.ticket_id != msg.ticket_id:
        raise nonsense(f"ticket is {answer.ticket_id[:64]!r}")
    if answer.action == types_pb2.ACTION_ADMIT and not answer.lease_id:
        raise nonsense("admitted without a lease")
