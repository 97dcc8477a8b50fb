"""A session: one agent program, many tickets over time, one id known to the engines."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from ._failure import Failure, Verdict
from ._options import check_choice, check_flag, check_id, check_seconds, check_text
from ._session_calls import CLOSE_PATIENCE, wait_at_most
from .errors import InvalidArgument, KvgateError
from .stats import Event
from .v1 import session_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._request import AdmitArgs
    from .gate import Admission, AsyncGate

Kind = Literal["radix", "streaming", "bind"]
_KINDS = {"radix": pb.SESSION_KIND_RADIX, "streaming": pb.SESSION_KIND_STREAMING, "bind": pb.SESSION_KIND_BIND}


class Session:
    """Opened on entering `async with`, closed on leaving it, whatever happens; see `AsyncGate.session`."""

    def __init__(
        self,
        gate: AsyncGate,
        session_id: str,
        *,
        pool: str,
        group: str,
        kind: str,
        idle_timeout: float | None,
        engine_url: str,
        abort_on_error: bool,
        wait_closed: float | None,
    ) -> None:
        kind_of_api = check_choice("kind", kind, _KINDS)
        if kind == "streaming" and not engine_url:
            raise InvalidArgument(
                "engine_url must name the engine that a streaming session lives on", field="engineUrl"
            )
        self._gate = gate
        self._abort_on_error = check_flag("abort_on_error", abort_on_error)
        self._wait = None if wait_closed is None else check_seconds("wait_closed", wait_closed)
        self._request = pb.OpenSessionRequest(
            pool=check_id("pool", pool, required=True),
            session_id=check_id("session_id", session_id, required=True),
            group_id=check_id("group_id", group),
            kind=kind_of_api,
            engine_url=check_text("engine_url", engine_url, longest=2048),
        )
        if idle_timeout is not None:
            self._request.idle_timeout.FromNanoseconds(int(check_seconds("idle_timeout", idle_timeout) * 1e9))
        self.id = session_id
        self.group = group
        self.pool = pool
        # The coordinator said that it is open. False while no coordinator answers; a radix session needs
        # no opening then, since its first admission opens it.
        self.opened = False
        self.warnings: tuple[str, ...] = ()

    def admit(self, **args: Unpack[AdmitArgs]) -> Admission:
        """An admission of this session; the arguments are those of `AsyncGate.admit`."""
        args.setdefault("session", self.id)
        args.setdefault("group", self.group)
        if args.get("pool") is None:
            args["pool"] = self.pool
        return self._gate.admit(**args)

    async def bind(self, engine_url: str, *, dp_rank: int = 0, ttl: float | None = None) -> None:
        """Records where the router placed the session's first turn; see `AsyncGate.bind_session`."""
        await self._gate.bind_session(self.id, engine_url, dp_rank=dp_rank, ttl=ttl, pool=self.pool)

    async def __aenter__(self) -> Session:
        core = self._gate._core_now()
        core.enter()
        try:
            answer = await core.tries.call(
                "SessionService/OpenSession", self._request, pb.OpenSessionResponse, brief=True
            )
        except asyncio.CancelledError:
            self._close_later(abort=True)
            raise
        except KvgateError as e:
            self._failed(e)
        else:
            self.opened = True
            self.warnings = tuple(answer.warnings)
        return self

    def _failed(self, e: KvgateError) -> None:
        """A refusal that the caller can change is raised; trouble of the coordinator is not."""
        cause = e.__cause__
        if isinstance(cause, Failure) and cause.verdict is Verdict.MISUSE:
            raise e
        core = self._gate._core_now()
        core.recorder.record(Event("session_failure", pool=self.pool, session=self.id, group=self.group, error=e))
        core.logs.session.warn(session=self.id, step="open", error=str(e))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closed = self._close_later(abort=self._abort_on_error and kind is not None)
        await wait_at_most(closed, self._wait)

    def _close_later(self, *, abort: bool) -> asyncio.Event:
        """Closes the session in the background; the event is set when that is known or was given up."""
        core = self._gate._core_now()
        core.guard()
        request = pb.CloseSessionRequest(
            pool=self.pool,
            session_id=self.id,
            mode=pb.CLOSE_MODE_ABORT if abort else pb.CLOSE_MODE_JOIN,
        )
        if self._gate.estimator is not None:
            self._gate.estimator.forget(self.id)
        return core.close_session(request, CLOSE_PATIENCE)
