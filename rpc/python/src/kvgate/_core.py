"""The engine of a gate, on one event loop: what its parts share, and how an admission begins and ends."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ._acquire import Acquisition
from ._courier import Courier
from ._endpoints import Endpoints
from ._failure import Failure, Verdict
from ._held import Held
from ._keeper import Keeper
from ._options import Options
from ._settle import Settlement, Settler, Step
from ._tasks import Tasks
from ._tickets import TicketKey, Tickets
from ._transport import Transport
from ._tries import Tries
from .errors import GateClosed, WrongLoop, WrongProcess
from .grant import Grant, decision_of, seconds
from .stats import Event, EventKind, RareLog, Recorder
from .v1 import admission_pb2 as pb
from .v1 import session_pb2


@dataclass(frozen=True)
class Logs:
    """The kinds of trouble that are logged, each at a bounded rate."""

    degraded: RareLog
    unsettled: RareLog
    heartbeat: RareLog
    renew: RareLog
    lost: RareLog
    session: RareLog
    dropped: RareLog

    @classmethod
    def new(cls) -> Logs:
        return cls(
            degraded=RareLog("kvgate cannot decide, attempts go ahead without a lease"),
            unsettled=RareLog("kvgate release or cancel was given up, its lease ends by itself"),
            heartbeat=RareLog("kvgate heartbeat was not answered, leases are at risk"),
            renew=RareLog("kvgate leases could not be renewed"),
            lost=RareLog("kvgate lease is gone while its generate call runs"),
            session=RareLog("kvgate session could not be opened or closed"),
            dropped=RareLog("kvgate grant was dropped without release(), its lease is given back"),
        )


class Core:
    """Belongs to the process and the event loop in which it was made."""

    def __init__(self, endpoints: Endpoints, options: Options, recorder: Recorder) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._running: set[asyncio.Task[Any]] = set()
        self._kicked: set[asyncio.Task[Any]] = set()
        self.options = options
        self.endpoints = endpoints
        self.recorder = recorder
        self.logs = Logs.new()
        self.transport = Transport(token=options.token, verify=options.verify)
        self.tries = Tries(options, endpoints, self.transport, recorder)
        self.loops = Tasks()
        self.settlements = Tasks()
        self._carriers = Tasks()
        self.tickets = Tickets()
        self.courier = Courier(self.tries, self._carriers, options.holder_id, multiplex=options.multiplex)
        self.keeper = Keeper(self)
        self.settler = Settler(self)

    def guard(self) -> None:
        """Raises WrongProcess after a fork and WrongLoop on another event loop."""
        self._guard_process()
        if not self._on_loop():
            raise WrongLoop("this gate belongs to another event loop: make one gate for each loop, or use kvgate.Gate")

    def _guard_process(self) -> None:
        if os.getpid() != self._pid:
            raise WrongProcess(
                f"this gate belongs to process {self._pid} and was used in {os.getpid()}, a fork of it: "
                "make a new gate in the child process"
            )

    def _on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def enter(self) -> None:
        """Guards a call that is about to begin."""
        self.guard()
        if self._closing:
            raise GateClosed("the gate is closed", code="canceled")

    async def acquire(self, msg: pb.AcquireRequest) -> Grant:
        """Asks for a decision; whatever is wrong with the coordinator becomes a degraded bypass."""
        self.enter()
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        self.keeper.enter()
        a = Acquisition(self, msg)
        try:
            answer = await a.run()
        except BaseException as e:
            self._leave(a)
            return self._without_decision(a, e)
        finally:
            self._running.discard(task)
        return self._granted(a, answer)

    def _without_decision(self, a: Acquisition, e: BaseException) -> Grant:
        """What an acquire that ended without a decision answers or raises."""
        if isinstance(e, asyncio.CancelledError) and self._was_kicked():
            raise GateClosed("the gate was closed", code="canceled") from None
        if not isinstance(e, Exception):
            raise e
        if isinstance(e, Failure) and e.verdict is Verdict.MISUSE:
            self.recorder.record(Event("error", pool=a.key.pool, ticket=a.key.ticket, error=e))
            raise e.public() from e
        return self._fail_open(a, e)

    def _was_kicked(self) -> bool:
        """Whether it was close that cancelled the current task, and nobody else."""
        task = asyncio.current_task()
        if task not in self._kicked:
            return False
        self._kicked.discard(task)
        uncancel = getattr(task, "uncancel", None)  # Python 3.11
        return uncancel is None or uncancel() == 0

    def _fail_open(self, a: Acquisition, cause: Exception) -> Grant:
        if isinstance(cause, Failure) and cause.verdict is Verdict.RETRYABLE and not a.queued:
            self.endpoints.down = True
        took = time.monotonic() - a.started
        self.logs.degraded.warn(
            pool=a.key.pool, ticket=a.key.ticket, tries=a.tries, seconds=round(took, 3), error=str(cause) or repr(cause)
        )
        event = Event("degraded", pool=a.key.pool, ticket=a.key.ticket, reason="degraded", error=cause)
        self.recorder.record(event)
        self.recorder.record(Event("bypassed", pool=a.key.pool, ticket=a.key.ticket, reason="degraded", error=cause))
        return Grant(self, Held(self, a.degraded(cause), term=0.0, tracked=False, dirty=False))

    def _granted(self, a: Acquisition, answer: pb.AcquireResponse) -> Grant:
        """The grant of a coordinator's decision. It takes over a's uses of the ticket and of the keeper
        when somebody must hear the grant's end."""
        decision = decision_of(a.key.pool, answer)
        admitted = decision.action == "admit"
        # A coordinator keeps count of a session's bypassed attempts too, so that its close can wait for them.
        tracked = admitted or a.msg.session_id != ""
        term = seconds(answer.expires_in) if answer.HasField("expires_in") else a.ttl
        held = Held(self, decision, term=term, tracked=tracked, dirty=a.dirty)
        kind: EventKind = "admitted" if admitted else "bypassed"
        event = Event(kind, a.key.pool, a.key.ticket, reason=decision.reason, waited=decision.waited)
        self.recorder.record(event)
        if tracked:
            self.keeper.hold(held)
        else:
            self._leave(a)
        return Grant(self, held)

    def _leave(self, a: Acquisition) -> None:
        """Ends a's use of its ticket, and cancels in the background what it may have left behind."""
        self.keeper.leave()
        if a.entered and (ended := self.tickets.leave(a.key, a.dirty)):
            # By then it is over by itself: the rest of the wait, and then a lease.
            until = max(a.deadline, time.monotonic()) + a.ttl
            self.settler.start(Settlement(a.key, until, [self.settler.cancel_step(a.key, ended)]))

    def release(self, held: Held) -> None:
        """Ends a grant; see Grant.release."""
        if held.released or not held.tracked:
            held.released = True
            return
        held.released = True
        ended = self.tickets.release(held.key, held.dirty)
        steps = self.settler.release_steps(held.key, held.release_message(), ended)
        # A lease that is over already is still worth one try: it carries the usage.
        until = max(held.expires_at, time.monotonic() + self.options.attempt_timeout)
        settlement = Settlement(held.key, until, steps)
        held.settlement = settlement
        self.keeper.drop(held)
        self.settler.start(settlement)

    def release_anywhere(self, held: Held) -> None:
        """The same from any thread of this process, and after the loop's end, when the holder TTL does it."""
        self._guard_process()
        if self._on_loop():
            self.release(held)
        else:
            self.release_soon(held)

    def release_soon(self, held: Held, *, dropped: bool = False) -> bool:
        """The same from any thread, and from a finalizer; False when the gate's loop is over, or in a fork.

        dropped: the caller forgot about the grant, which is counted and logged.
        """
        if os.getpid() != self._pid or self._loop.is_closed():
            return False
        held.leaving = True
        try:
            self._loop.call_soon_threadsafe(self._dropped if dropped else self.release, held)
        except RuntimeError:  # closed just now
            return False
        return True

    def _dropped(self, held: Held) -> None:
        if held.released:
            return
        self.recorder.record(Event("dropped", pool=held.key.pool, ticket=held.key.ticket))
        self.logs.dropped.warn(pool=held.key.pool, ticket=held.key.ticket, lease=held.decision.lease)
        self.release(held)

    def note_retry(self, key: TicketKey, failure: Failure) -> None:
        """Counts a try of an acquire that is repeated."""
        self.recorder.record(Event("retry", pool=key.pool, ticket=key.ticket, error=failure))

    def close_session(self, request: session_pb2.CloseSessionRequest, patience: float) -> asyncio.Event:
        """Closes a session in the background, repeated for at most patience seconds.

        The event is set when the close is known to have begun, or was given up.
        """
        about = Event("session_closed", pool=request.pool, session=request.session_id)

        async def attempt() -> None:
            answer, timeout = session_pb2.CloseSessionResponse, self.options.attempt_timeout
            await self.tries.once("SessionService/CloseSession", request, answer, timeout)

        return self._deliver(about, attempt, patience)

    def close_group(self, request: session_pb2.CloseGroupRequest, patience: float) -> asyncio.Event:
        """The same for all sessions of a group."""
        about = Event("session_closed", pool=request.pool, group=request.group_id)

        async def attempt() -> None:
            answer, timeout = session_pb2.CloseGroupResponse, self.options.attempt_timeout
            await self.tries.once("SessionService/CloseGroup", request, answer, timeout)

        return self._deliver(about, attempt, patience)

    def _deliver(self, about: Event, attempt: Callable[[], Awaitable[None]], patience: float) -> asyncio.Event:
        done = asyncio.Event()
        if not self.settlements.start(self._close(about, attempt, patience, done), "kvgate-close-session"):
            self._close_lost(about, Failure("the gate is closed"))
            done.set()
        return done

    async def _close(
        self, about: Event, attempt: Callable[[], Awaitable[None]], patience: float, done: asyncio.Event
    ) -> None:
        retried = dataclasses.replace(about, kind="close_retry")
        failure: Failure | None = Failure("the gate was closed before the outcome was known")
        try:
            failure = await self.settler.persist(retried, time.monotonic() + patience, Step(attempt))
        finally:
            if failure is None:
                self.recorder.record(about)
            else:
                self._close_lost(about, failure)
            done.set()

    def _close_lost(self, about: Event, failure: Failure) -> None:
        self.recorder.record(dataclasses.replace(about, kind="close_lost", error=failure))
        self.logs.session.warn(session=about.session, group=about.group, step="close", error=str(failure))

    async def heartbeat(self) -> pb.HeartbeatResponse:
        """Tells the coordinator that this process is alive."""
        request = pb.HeartbeatRequest(holder_id=self.options.holder_id or "")
        answer = await self.tries.call("AdmissionService/Heartbeat", request, pb.HeartbeatResponse)
        self.recorder.record(Event("heartbeat"))
        return answer

    async def close(self, timeout: float) -> int:
        """See AsyncGate.close."""
        self.guard()
        first, self._closing = not self._closing, True
        if not first:
            return 0
        try:
            await self._kick()
            await self.loops.stop()
            self._release_all()
            return await self.settlements.wait(timeout)
        finally:
            # Also when the close itself is cancelled, which means: do not wait.
            self._release_all()
            await self._stop()

    async def _kick(self) -> None:
        """Ends the acquires in progress."""
        for task in list(self._running):
            self._kicked.add(task)
            task.cancel()
        while self._running:  # noqa: ASYNC110 they leave within a few turns of the loop
            await asyncio.sleep(0)

    def _release_all(self) -> None:
        for held in list(self.keeper.held):
            self.release(held)

    async def _stop(self) -> None:
        await self.loops.stop()
        await self.settlements.stop()
        await self._carriers.stop()
        await self.transport.close()
