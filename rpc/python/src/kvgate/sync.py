"""The gate for code that is not asynchronous: the same, on a background thread's event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import warnings
from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ._options import check_seconds
from ._session_calls import CloseMode
from .errors import GateClosed, WrongLoop, WrongProcess
from .gate import AsyncGate, Cancelled
from .grant import Grant as AsyncGrant
from .session import Kind
from .session import Session as AsyncSession
from .stats import Event, Stats
from .v1 import observe_pb2, session_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from ._request import AdmitArgs

T = TypeVar("T")


class Gate:
    """`AsyncGate` for threads: the same arguments, methods and promises. Safe for use from many threads.

        with Gate("http://127.0.0.1:7070") as gate:
            with gate.admit(ticket="req-17:0", prompt_tokens=812, max_new_tokens=4096) as grant:
                reply = generate(...)

    A KeyboardInterrupt, or any exception that a signal handler raises, while an admission waits cancels it.
    on_event is called on the background thread.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Takes the arguments of `AsyncGate`. Raises InvalidArgument."""
        self._gate = AsyncGate(*args, **options)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        # Set by the first close, and when nothing more may start.
        self._closing = self._closed = False
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name="kvgate", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Its thread would outlive it. Grants and calls under way hold the gate, so nobody needs it any more.
        if getattr(self, "_closing", True) or os.getpid() != self._pid or self._loop.is_closed():
            return
        warnings.warn("kvgate.Gate was dropped without close()", ResourceWarning, stacklevel=2, source=self)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_end, self._gate, self._loop)

    def _guard(self) -> None:
        """Before any lock is taken: a fork may have copied one that is held."""
        if os.getpid() != self._pid:
            raise WrongProcess(
                f"this gate belongs to process {self._pid} and was used in {os.getpid()}, a fork of it: "
                "make a new gate in the child process"
            )

    def _start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        try:
            self._guard()
            with self._lock:
                if self._closed:
                    raise GateClosed("the gate is closed", code="canceled")
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the gate's loop and waits for it; giving up the wait cancels it.

        Raises GateClosed when the gate is closed meanwhile, and WrongLoop in an on_event hook, which would
        wait for itself.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise WrongLoop("an on_event hook runs on the gate's own thread and must not wait for the gate")
        future = self._start(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise GateClosed("the gate was closed", code="canceled") from None
        except BaseException:
            future.cancel()
            raise

    def close(self, timeout: float | None = None) -> int:
        """See `AsyncGate.close`. Ends the background thread; calls that other threads wait in raise GateClosed.

        A second close waits for the first and returns 0.
        """
        self._guard()
        if timeout is not None:
            check_seconds("timeout", timeout)
        with self._lock:
            first, self._closing = not self._closing, True
        if not first:
            if threading.current_thread() is not self._thread:
                self._thread.join()
            return 0
        try:
            return self._call(self._gate.close(timeout))
        finally:
            self._stop()

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @contextlib.contextmanager
    def admit(self, **args: Unpack[AdmitArgs]) -> Iterator[Grant]:
        """See `AsyncGate.admit`."""
        grant = self.acquire(**args)
        try:
            yield grant
        except BaseException:
            if grant._grant._held.usage is None:
                grant.usage(outcome="error")
            raise
        finally:
            grant.release()

    def acquire(self, **args: Unpack[AdmitArgs]) -> Grant:
        """Like `admit`, but the caller releases the grant."""
        message = self._gate.admit(**args)._take()
        handover = _Handover()

        async def work() -> None:
            handover.give(await self._gate._core_now().acquire(message))

        try:
            self._call(work())
        except BaseException:
            handover.refuse()
            raise
        return Grant(self, handover.take())

    @contextlib.contextmanager
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
    ) -> Iterator[Session]:
        """See `AsyncGate.session`."""
        session = self._gate.session(
            session_id,
            group=group,
            kind=kind,
            idle_timeout=idle_timeout,
            engine_url=engine_url,
            abort_on_error=abort_on_error,
            wait_closed=wait_closed,
            pool=pool,
        )
        self._call(session.__aenter__())
        try:
            yield Session(self, session.id, session.group, session.pool, session.opened, session.warnings)
        except BaseException as e:
            self._leave(session, e)
            raise
        else:
            self._leave(session, None)

    def _leave(self, session: AsyncSession, e: BaseException | None) -> None:
        """Closes a session. When the gate was closed inside it, nobody will, which must not hide the body's error."""
        try:
            self._call(session.__aexit__(type(e) if e else None, e, e.__traceback__ if e else None))
        except GateClosed as closed:
            event = Event("close_lost", pool=session.pool, session=session.id, group=session.group, error=closed)
            self._gate._recorder.record(event)

    def cancel(self, ticket: str, *, pool: str | None = None) -> Cancelled:
        """See `AsyncGate.cancel`."""
        return self._call(self._gate.cancel(ticket, pool=pool))

    def release(self, *, ticket: str = "", lease: str = "", pool: str | None = None) -> bool:
        """See `AsyncGate.release`."""
        return self._call(self._gate.release(ticket=ticket, lease=lease, pool=pool))

    def drain_step(self, step: int, *, run_id: str = "", pool: str | None = None) -> dict[str, float]:
        """See `AsyncGate.drain_step`."""
        return self._call(self._gate.drain_step(step, run_id=run_id, pool=pool))

    def budget(self, *, pool: str | None = None, stale: bool = False) -> observe_pb2.GetBudgetResponse:
        """See `AsyncGate.budget`."""
        return self._call(self._gate.budget(pool=pool, stale=stale))

    def ticket(self, ticket: str, *, pool: str | None = None, stale: bool = False) -> observe_pb2.GetTicketResponse:
        """See `AsyncGate.ticket`."""
        return self._call(self._gate.ticket(ticket, pool=pool, stale=stale))

    def leases(
        self, *, holder_id: str = "", session: str = "", pool: str | None = None, stale: bool = False
    ) -> list[observe_pb2.Lease]:
        """See `AsyncGate.leases`."""
        return self._call(self._gate.leases(holder_id=holder_id, session=session, pool=pool, stale=stale))

    def waiters(self, *, pool: str | None = None, stale: bool = False) -> list[observe_pb2.Waiter]:
        """See `AsyncGate.waiters`."""
        return self._call(self._gate.waiters(pool=pool, stale=stale))

    def engines(self, *, pool: str | None = None, stale: bool = False) -> list[observe_pb2.Engine]:
        """See `AsyncGate.engines`."""
        return self._call(self._gate.engines(pool=pool, stale=stale))

    def touch_session(self, session_id: str, *, pool: str | None = None) -> None:
        """See `AsyncGate.touch_session`."""
        self._call(self._gate.touch_session(session_id, pool=pool))

    def bind_session(
        self, session_id: str, engine_url: str, *, dp_rank: int = 0, ttl: float | None = None, pool: str | None = None
    ) -> None:
        """See `AsyncGate.bind_session`."""
        self._call(self._gate.bind_session(session_id, engine_url, dp_rank=dp_rank, ttl=ttl, pool=pool))

    def close_session(
        self, session_id: str, *, mode: CloseMode = "join", wait_closed: float | None = None, pool: str | None = None
    ) -> None:
        """See `AsyncGate.close_session`."""
        self._call(self._gate.close_session(session_id, mode=mode, wait_closed=wait_closed, pool=pool))

    def close_group(
        self, group: str, *, mode: CloseMode = "join", wait_closed: float | None = None, pool: str | None = None
    ) -> None:
        """See `AsyncGate.close_group`."""
        self._call(self._gate.close_group(group, mode=mode, wait_closed=wait_closed, pool=pool))

    def pin(
        self,
        pin_id: str,
        *,
        tokens: int = 0,
        token_ids: Iterable[int] = (),
        session: str = "",
        ttl: float | None = None,
        engine_url: str = "",
        pool: str | None = None,
    ) -> session_pb2.Pin:
        """See `AsyncGate.pin`."""
        return self._call(
            self._gate.pin(
                pin_id, tokens=tokens, token_ids=token_ids, session=session, ttl=ttl, engine_url=engine_url, pool=pool
            )
        )

    def unpin(self, pin_id: str, *, pool: str | None = None) -> bool:
        """See `AsyncGate.unpin`."""
        return self._call(self._gate.unpin(pin_id, pool=pool))

    def pins(self, *, session: str = "", pool: str | None = None, stale: bool = False) -> list[session_pb2.Pin]:
        """See `AsyncGate.pins`."""
        return self._call(self._gate.pins(session=session, pool=pool, stale=stale))

    def stats(self) -> Stats:
        """See `AsyncGate.stats`."""
        return self._gate.stats()

    @property
    def holder_id(self) -> str | None:
        """The name this process goes by."""
        return self._gate.holder_id


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """The background thread. Whoever still waits for a call when it ends is told, by its cancellation."""
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _end(gate: AsyncGate, loop: asyncio.AbstractEventLoop) -> None:
    """Closes a gate that was dropped, and ends its thread."""
    loop.create_task(gate.close()).add_done_callback(lambda _: loop.stop())


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class _Handover:
    """Passes a grant from the loop's thread to a thread that may have stopped waiting for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grant: AsyncGrant | None = None
        self._refused = False

    def give(self, grant: AsyncGrant) -> None:
        with self._lock:
            if not self._refused:
                self._grant = grant
                return
        grant.release()

    def take(self) -> AsyncGrant:
        assert self._grant is not None
        return self._grant

    def refuse(self) -> None:
        with self._lock:
            self._refused = True
            grant, self._grant = self._grant, None
        if grant is not None:
            grant._core.release_soon(grant._held)


class Grant:
    """`kvgate.grant.Grant` for threads; its decision's fields are attributes here too."""

    def __init__(self, gate: Gate, grant: AsyncGrant) -> None:
        self._gate = gate
        self._grant = grant
        self.decision = grant.decision
        self.action = grant.action
        self.reason = grant.reason
        self.pool = grant.pool
        self.ticket = grant.ticket
        self.reservation_tokens = grant.reservation_tokens
        self.lease = grant.lease
        self.number = grant.number
        self.owner_epoch = grant.owner_epoch
        self.waited = grant.waited
        self.binding = grant.binding
        self.warnings = grant.warnings
        self.cause = grant.cause
        self.admitted = grant.admitted

    def __repr__(self) -> str:
        return repr(self._grant)

    @property
    def lost(self) -> bool:
        """The lease is gone while the grant is held."""
        return self._grant.lost

    @property
    def expires_in(self) -> float:
        """Seconds until the lease ends unless it is renewed."""
        return self._grant.expires_in

    def usage(
        self,
        *,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        engine_url: str = "",
        outcome: str = "",
    ) -> None:
        """See `kvgate.grant.Grant.usage`."""
        self._grant.usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=cached_tokens,
            engine_url=engine_url,
            outcome=outcome,
        )

    def release(self) -> None:
        """Ends the grant. Returns at once and never fails; after the gate's close there is nothing to do."""
        with contextlib.suppress(GateClosed):
            self._gate._start(self._release())

    async def _release(self) -> None:
        self._grant.release()

    def release_wait(self) -> None:
        """See `kvgate.grant.Grant.release_wait`."""
        self._gate._call(self._grant.release_wait())

    def renew(self, ttl: float | None = None) -> None:
        """See `kvgate.grant.Grant.renew`."""
        self._gate._call(self._grant.renew(ttl))


class Session:
    """`kvgate.session.Session` for threads."""

    def __init__(
        self, gate: Gate, session_id: str, group: str, pool: str, opened: bool, warnings: tuple[str, ...]
    ) -> None:
        self._gate = gate
        self.id = session_id
        self.group = group
        self.pool = pool
        self.opened = opened
        self.warnings = warnings

    def bind(self, engine_url: str, *, dp_rank: int = 0, ttl: float | None = None) -> None:
        """See `kvgate.session.Session.bind`."""
        self._gate.bind_session(self.id, engine_url, dp_rank=dp_rank, ttl=ttl, pool=self.pool)

    def admit(self, **args: Unpack[AdmitArgs]) -> contextlib.AbstractContextManager[Grant]:
        """An admission of this session; the arguments are those of `AsyncGate.admit`."""
        args.setdefault("session", self.id)
        args.setdefault("group", self.group)
        if args.get("pool") is None:
            args["pool"] = self.pool
        return self._gate.admit(**args)
