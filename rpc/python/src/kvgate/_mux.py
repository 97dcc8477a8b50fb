"""Carries all tickets of a process over two calls: Submit for operations, AwaitGrants for decisions.

Both are unary, so they work over HTTP/1.1 and through any proxy, and a process needs a handful of
connections however many tickets wait. One Submit is under way per node at a time, which keeps the order of
the acquires and makes batches form by themselves while the previous one travels.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from dataclasses import dataclass

from ._endpoints import Endpoint
from ._failure import Failure, nonsense
from ._tasks import Tasks
from ._tickets import TicketKey
from ._tries import Tries
from .v1 import admission_pb2 as pb
from .v1 import types_pb2

# The most operations of one Submit, by the API.
BATCH = 1024
# The most bytes of one Submit: half of what a node takes.
BATCH_BYTES = 512 << 10
# One long poll. Short, because a node that hangs is noticed when an answer is overdue.
POLL = 2.0
# The longest pause after a poll that a node answered at once with nothing, which it should not.
IDLE_PAUSE = 1.0
# A node without Submit is asked again after so long: it may have been replaced by a newer one.
LEGACY_FOR = 60.0


class Unsupported(Exception):
    """The node has no Submit; use the unary calls."""


@dataclass(eq=False)
class Op:
    """One operation on its way, and where its outcome goes."""

    request: pb.ExchangeRequest
    outcome: asyncio.Future[pb.ExchangeResponse]
    sent: bool = False
    # The coordinator said that the ticket waits.
    queued: bool = False

    @property
    def key(self) -> TicketKey:
        acquire = self.request.acquire
        return TicketKey(acquire.pool, acquire.ticket_id)

    def fail(self, failure: Exception) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(failure)
            # Whoever asked may be gone.
            self.outcome.exception()

    def succeed(self, result: pb.ExchangeResponse) -> None:
        if not self.outcome.done():
            self.outcome.set_result(result)


class Channel:
    """Submit and AwaitGrants on one node."""

    def __init__(self, endpoint: Endpoint, tries: Tries, tasks: Tasks, holder: str) -> None:
        self.endpoint = endpoint
        self._tries = tries
        self._tasks = tasks
        self._holder = holder
        self._queue: deque[Op] = deque()
        self._pumping = False
        self._polling = False
        self._cursor = ""
        # An answer of AwaitGrants was not acknowledged yet.
        self._unacknowledged = False
        # Acquires that were sent and not decided, by ticket.
        self._waiting: dict[TicketKey, list[Op]] = {}
        self._legacy_until = 0.0

    @property
    def legacy(self) -> bool:
        """Whether the node has no Submit."""
        return time.monotonic() < self._legacy_until

    def put(self, op: Op) -> None:
        """Takes an operation; it goes with the next Submit."""
        self._queue.append(op)
        if not self._pumping:
            self._pumping = self._tasks.start(self._pump(), "kvgate-submit")
            if not self._pumping:
                op.fail(Failure("the gate is closed", not_sent=True))

    def withdraw(self, op: Op) -> None:
        """Forgets an operation that is decided, or that nobody waits for any more."""
        op.outcome.cancel()
        self._forget(op)

    def _forget(self, op: Op) -> None:
        if not op.request.HasField("acquire"):
            return
        left = [o for o in self._waiting.get(op.key, ()) if o is not op]
        if left:
            self._waiting[op.key] = left
        else:
            self._waiting.pop(op.key, None)

    async def _pump(self) -> None:
        """Sends what is queued until nothing is."""
        try:
            # One turn of the loop, so that whoever is about to ask comes along.
            await asyncio.sleep(0)
            while self._queue:
                if batch := self._batch():
                    await self._submit(batch)
        finally:
            self._pumping = False
            if self._queue:
                stranded, self._queue = self._queue, deque()
                for op in stranded:
                    op.fail(Failure("the gate is closed", not_sent=True))

    def _batch(self) -> list[Op]:
        """Takes what goes into one Submit. What was withdrawn before it left need not go."""
        batch: list[Op] = []
        size = 0
        while self._queue and len(batch) < BATCH and size < BATCH_BYTES:
            op = self._queue.popleft()
            if not op.outcome.done():
                batch.append(op)
                size += op.request.ByteSize()
        return batch

    async def _submit(self, batch: list[Op]) -> None:
        request = pb.SubmitRequest(holder_id=self._holder, ops=[op.request for op in batch])
        for op in batch:
            op.sent = True
            if op.request.HasField("acquire"):
                self._waiting.setdefault(op.key, []).append(op)
        timeout = self._tries.options.attempt_timeout
        method = "AdmissionService/Submit"
        try:
            answer = await self._tries.on(self.endpoint, method, request, pb.SubmitResponse, timeout)
            if len(answer.results) != len(batch):
                raise nonsense(f"{len(answer.results)} results for {len(batch)} operations")
        except Failure as failure:
            self._refused(batch, failure)
            return
        except BaseException:
            self._fail(batch, Failure("the gate is closed"))
            raise
        for op, result in zip(batch, answer.results, strict=True):
            self._answered(op, result)

    def _refused(self, batch: list[Op], failure: Failure) -> None:
        """A Submit failed as a whole."""
        if failure.code == "unimplemented":
            self._legacy_until = time.monotonic() + LEGACY_FOR
            self._fail(batch, Unsupported())
            self._fail(list(self._queue), Unsupported())
            self._queue.clear()
            return
        self._fail(batch, failure)

    def _fail(self, ops: list[Op], failure: Exception) -> None:
        for op in ops:
            self._forget(op)
            op.fail(failure)

    def _answered(self, op: Op, result: pb.ExchangeResponse) -> None:
        if result.HasField("acquire") and result.acquire.action == types_pb2.ACTION_WAIT:
            op.queued = True
            if not op.outcome.done() and not self._polling:
                self._polling = self._tasks.start(self._poll(), "kvgate-await-grants")
            return
        self._forget(op)
        op.succeed(result)

    async def _poll(self) -> None:
        """Asks for decisions while anything waits, or an answer is not acknowledged."""
        try:
            again, pause = True, 0.0
            while self._waiting or self._unacknowledged:
                await asyncio.sleep(pause)
                began, waiting = time.monotonic(), bool(self._waiting)
                try:
                    idle = not await self._poll_once() and waiting and time.monotonic() - began < POLL / 4
                    again, pause = True, min(max(2 * pause, 0.05), IDLE_PAUSE) if idle else 0.0
                except Failure as failure:
                    # A connection may have gone stale; a node that hangs or is gone is given up.
                    if not again or failure.not_sent or failure.code == "deadline_exceeded":
                        self._give_up(failure)
                        return
                    again = False
        finally:
            self._polling = False

    async def _poll_once(self) -> bool:
        """One long poll. False when the node had nothing to say."""
        wait = POLL if self._waiting else 0.0
        queued = [op for ops in self._waiting.values() for op in ops if op.queued]
        request = pb.AwaitGrantsRequest(holder_id=self._holder, cursor=self._cursor)
        request.timeout.FromMilliseconds(int(wait * 1000))
        timeout = wait + self._tries.options.attempt_timeout * 2 / 3
        method = "AdmissionService/AwaitGrants"
        answer = await self._tries.on(self.endpoint, method, request, pb.AwaitGrantsResponse, timeout)
        self._unacknowledged = len(answer.decisions) > 0
        self._cursor = answer.cursor
        for decision in answer.decisions:
            self._decided(decision)
        if answer.reset:
            # The node has lost sight of the holder: what still waits there is submitted again.
            left = [op for op in queued if not op.outcome.done()]
            self._fail(left, Failure("the node knows no waiters", code="aborted"))
        return self._unacknowledged

    def _decided(self, decision: pb.WaiterDecision) -> None:
        """Hands a decision to all who wait for it. One on an earlier life of the ticket has a lower seq."""
        result = pb.ExchangeResponse(seq=decision.seq)
        if decision.HasField("acquire"):
            result.acquire.CopyFrom(decision.acquire)
        else:
            result.error.CopyFrom(decision.error)
        for op in list(self._waiting.get(TicketKey(decision.pool, decision.ticket_id), ())):
            if op.request.seq <= decision.seq:
                self._forget(op)
                op.succeed(result)

    def _give_up(self, failure: Failure) -> None:
        """The node does not answer: everything that waits there is asked anew, wherever it goes on. It was
        sent, whatever became of the poll."""
        self._cursor, self._unacknowledged = "", False
        failure = failure.copy()
        failure.not_sent = False
        self._fail([op for ops in list(self._waiting.values()) for op in list(ops)], failure)


class Mux:
    """Sends operations over the channel of the endpoint that works now."""

    def __init__(self, tries: Tries, tasks: Tasks, holder: str) -> None:
        self._tries = tries
        self._tasks = tasks
        self._holder = holder
        self._channels: dict[int, Channel] = {}
        self._seq = itertools.count(1)

    def channel(self) -> Channel | None:
        """The channel to use now, or None when that node has no Submit."""
        endpoint = self._tries.endpoints.pick()
        channel = self._channels.get(endpoint.index)
        if channel is None:
            channel = Channel(endpoint, self._tries, self._tasks, self._holder)
            self._channels[endpoint.index] = channel
        return None if channel.legacy else channel

    def op(self, request: pb.ExchangeRequest) -> Op:
        """A new operation; it gets the next number."""
        request.seq = next(self._seq)
        return Op(request, asyncio.get_running_loop().create_future())

    async def run(self, channel: Channel, op: Op, timeout: float) -> pb.ExchangeResponse:
        """Sends one operation and returns its result.

        Raises Failure or Unsupported. op.sent and op.queued tell how far it came, whatever happens.
        """
        channel.put(op)
        try:
            await asyncio.wait({op.outcome}, timeout=timeout)
            if not op.outcome.done():
                raise Failure(f"no decision within {timeout:.1f} s", code="deadline_exceeded")
        finally:
            channel.withdraw(op)
        try:
            result = op.outcome.result()
        except Failure as failure:
            # One failure may be the outcome of a whole batch; each raises its own.
            raise failure.copy() from failure
        if result.HasField("error"):
            raise _op_failure(result.error)
        return result


def _op_failure(error: pb.OpError) -> Failure:
    info = error.info
    return Failure(
        error.message or error.code,
        code=error.code or "unknown",
        name=info.code,
        field=info.field,
        retry_after=max(0.0, info.retry_after.seconds + info.retry_after.nanos / 1e9),
        leader_hint=info.leader_hint,
    )
