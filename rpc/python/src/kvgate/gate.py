"""The asyncio client: ask for a lease, generate, release."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from ._core import Core
from ._endpoints import Endpoints
from ._failure import nonsense
from ._options import Options, check_flag, check_id, check_seconds, check_text, check_tokens, new_holder_id
from ._request import Mode, acquire_message
from ._session_calls import PAGE, SessionCalls
from ._tickets import new_call_id
from .errors import GateClosed, InvalidArgument
from .grant import Grant
from .reservation import RequestEstimator, Reservation
from .session import Kind, Session
from .stats import Event, Recorder, Stats
from .v1 import admission_pb2, observe_pb2, types_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

Cancelled = Literal["waiting", "leased", "unknown"]


class Admission:
    """What `admit` returns: `async with` it to hold a lease, or `await` it for a grant to release oneself."""

    def __init__(self, gate: AsyncGate, message: admission_pb2.AcquireRequest) -> None:
        self._gate = gate
        self._message = message
        self._grant: Grant | None = None
        self._used = self._entered = False

    def __del__(self) -> None:
        # As for a coroutine: without a word the call would simply not be admitted.
        if not getattr(self, "_used", True):
            warnings.warn(
                f"admission of ticket {self._message.ticket_id!r} was never awaited: use 'async with gate.admit(...)'",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    def __await__(self) -> Generator[Any, None, Grant]:
        message = self._take()
        return self._gate._core_now().acquire(message).__await__()

    def _take(self) -> admission_pb2.AcquireRequest:
        """The message, for whoever awaits the decision."""
        self._used = True
        return self._message

    async def __aenter__(self) -> Grant:
        if self._entered:
            raise RuntimeError(
                f"admission of ticket {self._message.ticket_id!r} is entered already: call admit() for each attempt"
            )
        self._entered = True
        try:
            self._grant = await self
        except BaseException:
            self._entered = False
            raise
        return self._grant

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        grant, self._grant, self._entered = self._grant, None, False
        if grant is not None:
            if kind is not None and grant._held.usage is None:
                grant.usage(outcome="abort" if issubclass(kind, asyncio.CancelledError) else "error")
            grant.release()


class AsyncGate(SessionCalls):
    """Asks a kvgate cluster for leases. Make one per process and event loop, share it, close it.

        async with AsyncGate(["http://10.0.0.1:7070", "http://10.0.0.2:7070"]) as gate:
            async with gate.admit(ticket="req-17:0", prompt_tokens=812, max_new_tokens=4096) as grant:
                reply = await generate(...)
                grant.usage(prompt_tokens=..., completion_tokens=...)

    All amounts are tokens, all times seconds.

    A coordinator that is down, slow or talks nonsense never stops a rollout: the grant is then a bypass
    with reason "degraded" and a `cause`, counted, and logged on logger "kvgate" once in ten seconds. An
    admission takes at most its max wait plus the decision budget. Exceptions are left for what the caller
    must change: InvalidArgument (with the `field`, raised before anything is sent), TicketMismatch,
    SessionClosing, GateClosed, WrongProcess (after a fork) and WrongLoop; and CancelledError, after which
    the ticket is cancelled in the background so that neither a waiter nor a lease stays behind.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str],
        *,
        pool: str = "default",
        holder_id: str | None = "",
        token: str | None = None,
        verify: ssl.SSLContext | bool = True,
        decision_budget: float = 3.0,
        default_max_wait: float = 30.0,
        default_ttl: float = 600.0,
        attempt_timeout: float = 3.0,
        call_budget: float = 10.0,
        retry_first: float = 0.05,
        retry_longest: float = 1.0,
        auto_renew: bool = True,
        multiplex: bool = True,
        on_event: Callable[[Event], None] | None = None,
        close_timeout: float = 5.0,
    ) -> None:
        """Makes no connection yet. Raises InvalidArgument.

        endpoints: the URLs of the cluster's nodes, e.g. "http://10.0.0.1:7070".
        pool: what admissions use that name none.
        holder_id: names this process; two live processes must never share a name, or each keeps the
            other's leases alive. "" makes one up; None sends no heartbeats, so that what this process
            leaves behind when it dies lasts until its leases expire, and turns multiplexing off.
        token: a bearer token. Over http it travels in the clear.
        verify: an SSL context for https, or False to trust every certificate.
        decision_budget: how much longer than its max wait an admission may take before the gate lets it
            through by itself; also how long a new ticket puts up with a cluster that cannot be reached.
            More than the coordinator's fail_open_after (2 s).
        default_max_wait: what the pools' max_wait setting is taken to be, for admissions that name none:
            it bounds the whole and retries send what is left of it.
        default_ttl: what the pools' lease_ttl is taken to be; bounds how long a ticket that was given up
            is cancelled for.
        attempt_timeout: of each try of a call that does not wait.
        call_budget: how long a call that only asks (drain_step, budget…) is repeated before it raises.
        retry_first, retry_longest: the pauses between rounds over the endpoints, doubling, with jitter.
        auto_renew: whether held leases are renewed by themselves at half their time.
        multiplex: whether all tickets share a few connections, where the server can.
        on_event: called with every Event on the event loop's thread; must not block.
        close_timeout: how long leaving `async with` waits for releases that are under way.
        """
        self._options = Options(
            pool=pool or "default",
            holder_id=new_holder_id() if holder_id == "" else holder_id,
            token=token,
            verify=verify,
            decision_budget=decision_budget,
            default_max_wait=default_max_wait,
            default_ttl=default_ttl,
            attempt_timeout=attempt_timeout,
            call_budget=call_budget,
            retry_first=retry_first,
            retry_longest=retry_longest,
            auto_renew=auto_renew,
            multiplex=multiplex,
            on_event=on_event,
        )
        self._endpoints = Endpoints(endpoints)
        self._recorder = Recorder(on_event)
        self._core: Core | None = None
        self._closed = False
        self._close_timeout = check_seconds("close_timeout", close_timeout)
        # Learns from usage what OpenAI-style requests need; `kvgate.openai` uses it.
        self.estimator = RequestEstimator()

    @property
    def holder_id(self) -> str | None:
        """The name this process goes by."""
        return self._options.holder_id

    @property
    def pool(self) -> str:
        """The pool of admissions that name none."""
        return self._options.pool

    def _core_now(self) -> Core:
        """The engine, bound to the running event loop on first use. Raises GateClosed and as Core.guard."""
        if self._core is None:
            if self._closed:
                raise GateClosed("the gate is closed", code="canceled")
            self._core = Core(self._endpoints, self._options, self._recorder)
        self._core.guard()
        return self._core

    async def __aenter__(self) -> Self:
        self._core_now()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout: float | None = None) -> int:
        """Ends the gate; further calls do nothing.

        Admissions in progress raise GateClosed and are cancelled; grants that are still held are
        released. Waits until all releases, cancels and session closes are known, at most timeout seconds
        (close_timeout by default), and returns how many were not: they are counted and logged, and what
        they would have ended is reclaimed when the holder TTL has passed.
        """
        limit = self._close_timeout if timeout is None else check_seconds("timeout", timeout)
        self._closed = True
        return 0 if self._core is None else await self._core.close(limit)

    def admit(
        self,
        *,
        ticket: str,
        prompt_tokens: int = 0,
        max_new_tokens: int = 0,
        reservation_tokens: int | None = None,
        reservation: Reservation | None = None,
        session: str = "",
        group: str = "",
        mode: Mode = "train",
        protected: bool = False,
        priority: int = 0,
        rid: str = "",
        max_wait: float | None = None,
        ttl: float | None = None,
        pool: str | None = None,
    ) -> Admission:
        """Asks for a lease: `async with gate.admit(...) as grant`, released at exit whatever happens.

        Waits while the ticket waits. Raises InvalidArgument at once; see the class for the rest.

        ticket: the caller's id for one backend attempt, e.g. "req-17:0". Asking again with the same one
            joins its waiter or answers with its lease; it is charged once.
        prompt_tokens: the processor-expanded length of the prompt.
        max_new_tokens: the generation limit. The pool may reserve less for it.
        reservation_tokens: the reservation outright, instead of the two above.
        reservation: the same from a helper in `kvgate.reservation`.
        session, group: the agent program the attempt belongs to, and its rollout group.
        mode: "train" or "eval".
        protected: never queued and never charged.
        priority: higher goes first; first come, first served within one.
        rid: the request id that the engine sees, by default the ticket.
        max_wait: the longest time in the queue; 0 asks for a decision at once; None means the pool's.
        ttl: the lease's time to live between renewals; None means the pool's.
        """
        message = acquire_message(
            self._options.holder_id,
            pool=self._pool(pool),
            ticket=ticket,
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            reservation_tokens=reservation_tokens,
            reservation=reservation,
            session=session,
            group=group,
            mode=mode,
            protected=protected,
            priority=priority,
            rid=rid,
            max_wait=max_wait,
            ttl=ttl,
        )
        return Admission(self, message)

    def session(
        self,
        session_id: str,
        *,
        group: str = "",
        kind: Kind = "radix",
        idle_timeout: float | None = None,
        engine_url: str = "",
        abort_on_error: bool = False,
        wait_closed: float | None = None,
        pool: str | None = None,
    ) -> Session:
        """An agent session: `async with gate.session(id) as s`, opened at entry and closed at exit.

        The close joins: the coordinator waits for the session's tickets in flight, then tells the engines
        to free its KV. It is sent in the background until it is known, so leaving takes no time.

        kind: "radix", "streaming" (needs engine_url) or "bind".
        idle_timeout: the coordinator closes the session after so many seconds without a ticket; 0 never;
            None means never for radix and 300 s for the others.
        abort_on_error: leaving with an exception aborts the tickets in flight instead of waiting for them.
        wait_closed: leaving waits until the close is known to have begun, at most so many seconds.
        """
        return Session(
            self,
            session_id,
            pool=self._pool(pool),
            group=group,
            kind=kind,
            idle_timeout=idle_timeout,
            engine_url=engine_url,
            abort_on_error=abort_on_error,
            wait_closed=wait_closed,
        )

    async def cancel(self, ticket: str, *, pool: str | None = None) -> Cancelled:
        """Takes the ticket's waiter out of the queue or releases its lease, and says which it was.

        When there was neither ("unknown"), the next admission of the ticket bypasses as "cancelled". An
        admission that waits for the ticket gets a grant with that reason. Raises CallFailed.
        """
        core = self._entered()
        request = admission_pb2.CancelRequest(
            pool=self._pool(pool), ticket_id=check_id("ticket_id", ticket, required=True), call_id=new_call_id()
        )
        answer = await core.tries.call("AdmissionService/Cancel", request, admission_pb2.CancelResponse)
        if answer.was == types_pb2.CANCEL_STATE_WAITING:
            return "waiting"
        return "leased" if answer.was == types_pb2.CANCEL_STATE_LEASED else "unknown"

    async def release(self, *, ticket: str = "", lease: str = "", pool: str | None = None) -> bool:
        """Ends a lease that this gate has no grant of, by ticket or by lease id; whether there was one.

        Unlike `Grant.release` it is not fenced. Raises CallFailed.
        """
        core = self._entered()
        if bool(ticket) == bool(lease):
            raise InvalidArgument("ticket and lease: give one of them", field="ticketId")
        request = admission_pb2.ReleaseRequest(
            pool=self._pool(pool),
            ticket_id=check_id("ticket_id", ticket),
            lease_id=check_text("lease_id", lease, longest=300),
            holder_id=self._options.holder_id or "",
        )
        answer = await core.tries.call("AdmissionService/Release", request, admission_pb2.ReleaseResponse)
        return answer.released

    async def drain_step(self, step: int, *, run_id: str = "", pool: str | None = None) -> dict[str, float]:
        """The metrics since the previous drain, by "agentic_kv/…" key, ready for a tracker.

        Starts the next window. The same run_id and step again return the same, so a call that failed may be
        repeated; the gate repeats it too. Raises CallFailed.
        """
        core = self._entered()
        request = observe_pb2.DrainStepRequest(
            pool=self._pool(pool), step=check_tokens("step", step), run_id=check_id("run_id", run_id)
        )
        answer = await core.tries.call("ObserveService/DrainStep", request, observe_pb2.DrainStepResponse)
        if not answer.metrics:
            raise nonsense("a step without metrics").public()
        return dict(answer.metrics)

    async def budget(self, *, pool: str | None = None, stale: bool = False) -> observe_pb2.GetBudgetResponse:
        """The pool's ceiling, reserved and available tokens, and how it is doing. Raises CallFailed.

        This and the other observing calls are linearizable; stale=True asks the node at hand instead.
        """
        request = observe_pb2.GetBudgetRequest(pool=self._pool(pool), stale=check_flag("stale", stale))
        return await self._entered().tries.call("ObserveService/GetBudget", request, observe_pb2.GetBudgetResponse)

    async def ticket(
        self, ticket: str, *, pool: str | None = None, stale: bool = False
    ) -> observe_pb2.GetTicketResponse:
        """Where a ticket stands, with a sentence that explains it. Raises CallFailed."""
        request = observe_pb2.GetTicketRequest(
            pool=self._pool(pool),
            ticket_id=check_id("ticket_id", ticket, required=True),
            stale=check_flag("stale", stale),
        )
        return await self._entered().tries.call("ObserveService/GetTicket", request, observe_pb2.GetTicketResponse)

    async def leases(
        self, *, holder_id: str = "", session: str = "", pool: str | None = None, stale: bool = False
    ) -> list[observe_pb2.Lease]:
        """All live leases, of one holder or session where given. Raises CallFailed."""
        core, token = self._entered(), ""
        found: list[observe_pb2.Lease] = []
        while True:
            request = observe_pb2.ListLeasesRequest(
                pool=self._pool(pool),
                page_size=PAGE,
                page_token=token,
                stale=check_flag("stale", stale),
                holder_id=check_id("holder_id", holder_id),
                session_id=check_id("session_id", session),
            )
            answer = await core.tries.call("ObserveService/ListLeases", request, observe_pb2.ListLeasesResponse)
            found.extend(answer.leases)
            token = answer.next_page_token
            if not token:
                return found

    async def waiters(self, *, pool: str | None = None, stale: bool = False) -> list[observe_pb2.Waiter]:
        """Everyone in the queue, in its order. Raises CallFailed."""
        core, token = self._entered(), ""
        found: list[observe_pb2.Waiter] = []
        while True:
            request = observe_pb2.ListWaitersRequest(
                pool=self._pool(pool), page_size=PAGE, page_token=token, stale=check_flag("stale", stale)
            )
            answer = await core.tries.call("ObserveService/ListWaiters", request, observe_pb2.ListWaitersResponse)
            found.extend(answer.waiters)
            token = answer.next_page_token
            if not token:
                return found

    async def engines(self, *, pool: str | None = None, stale: bool = False) -> list[observe_pb2.Engine]:
        """The pool's engines with capacity and usage. Raises CallFailed."""
        request = observe_pb2.ListEnginesRequest(pool=self._pool(pool), stale=check_flag("stale", stale))
        answer = await self._entered().tries.call(
            "ObserveService/ListEngines", request, observe_pb2.ListEnginesResponse
        )
        return list(answer.engines)

    def stats(self) -> Stats:
        """The counts so far; safe from any thread."""
        return self._recorder.snapshot()

    def _entered(self) -> Core:
        core = self._core_now()
        core.enter()
        return core

    def _pool(self, pool: str | None) -> str:
        return self._options.pool if pool is None else check_id("pool", pool or "default", required=True)
