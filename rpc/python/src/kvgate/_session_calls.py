"""The calls on sessions, groups and pins by name, for gates."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal

from ._core import Core
from ._options import check_choice, check_flag, check_id, check_seconds, check_text, check_tokens, shown
from .errors import InvalidArgument
from .v1 import session_pb2 as pb

CloseMode = Literal["join", "abort"]
_MODES = {"join": pb.CLOSE_MODE_JOIN, "abort": pb.CLOSE_MODE_ABORT}
# For so long a close is repeated while no coordinator answers. Engines drop what is left by their own
# means after that, as they would without a coordinator.
CLOSE_PATIENCE = 600.0
# How many rows a page of a listing has.
PAGE = 1000
MAX_DP_RANK = 65_535


class SessionCalls(ABC):
    """What `AsyncGate` has for sessions that are not inside `async with gate.session(...)`."""

    @abstractmethod
    def _entered(self) -> Core: ...

    @abstractmethod
    def _pool(self, pool: str | None) -> str: ...

    async def touch_session(self, session_id: str, *, pool: str | None = None) -> None:
        """Starts the idle clock of an open session anew. Raises CallFailed."""
        request = pb.TouchSessionRequest(
            pool=self._pool(pool), session_id=check_id("session_id", session_id, required=True)
        )
        await self._entered().tries.call("SessionService/TouchSession", request, pb.TouchSessionResponse)

    async def bind_session(
        self, session_id: str, engine_url: str, *, dp_rank: int = 0, ttl: float | None = None, pool: str | None = None
    ) -> None:
        """Records where the router placed the session's first turn; later grants carry it as `binding`.

        ttl: seconds, sliding with each turn; None means while the session is open. Raises CallFailed.
        """
        if check_tokens("dp_rank", dp_rank) > MAX_DP_RANK:
            raise InvalidArgument(f"dp_rank is {dp_rank}, allowed is 0 to {MAX_DP_RANK}", field="dpRank")
        request = pb.BindSessionRequest(
            pool=self._pool(pool),
            session_id=check_id("session_id", session_id, required=True),
            engine_url=check_text("engine_url", engine_url, longest=2048, required=True),
            dp_rank=int(dp_rank),
        )
        if ttl is not None:
            request.ttl.FromNanoseconds(int(check_seconds("ttl", ttl, positive=True) * 1e9))
        await self._entered().tries.call("SessionService/BindSession", request, pb.BindSessionResponse)

    async def close_session(
        self, session_id: str, *, mode: CloseMode = "join", wait_closed: float | None = None, pool: str | None = None
    ) -> None:
        """Begins to close a session that was opened elsewhere; `gate.session(...)` closes its own.

        Returns at once and does not raise for trouble: the close is repeated in the background until a
        coordinator has it, for at most 10 minutes. mode: "join" waits for the tickets in flight, "abort"
        aborts them. wait_closed: wait until the close is known to have begun, at most so many seconds.
        """
        request = pb.CloseSessionRequest(
            pool=self._pool(pool),
            session_id=check_id("session_id", session_id, required=True),
            mode=check_choice("mode", mode, _MODES),
        )
        limit = None if wait_closed is None else check_seconds("wait_closed", wait_closed)
        await wait_at_most(self._entered().close_session(request, CLOSE_PATIENCE), limit)

    async def close_group(
        self, group: str, *, mode: CloseMode = "join", wait_closed: float | None = None, pool: str | None = None
    ) -> None:
        """Begins to close all open sessions of a rollout group, like `close_session`."""
        request = pb.CloseGroupRequest(
            pool=self._pool(pool),
            group_id=check_id("group_id", group, required=True),
            mode=check_choice("mode", mode, _MODES),
        )
        limit = None if wait_closed is None else check_seconds("wait_closed", wait_closed)
        await wait_at_most(self._entered().close_group(request, CLOSE_PATIENCE), limit)

    async def pin(
        self,
        pin_id: str,
        *,
        tokens: int = 0,
        token_ids: Iterable[int] = (),
        session: str = "",
        ttl: float | None = None,
        engine_url: str = "",
        pool: str | None = None,
    ) -> pb.Pin:
        """Keeps a conversation prefix from eviction for a while; the same pin_id again renews the pin.

        tokens: its length; or token_ids: the prefix itself, for engines that can hold it.
        session: the pin ends with it. engine_url: the engine to hold it, by default the session's.
        ttl: whole seconds, which the coordinator clamps to 300 to 3600; None means 300.
        Raises CallFailed, with name "pins_disabled" or "pin_budget_exhausted" among others.
        """
        request = pb.PinPrefixRequest(
            pool=self._pool(pool),
            pin_id=check_id("pin_id", pin_id, required=True),
            session_id=check_id("session_id", session),
            tokens=check_tokens("tokens", tokens),
            ttl="" if ttl is None else str(round(check_seconds("ttl", ttl))),
            engine_url=check_text("engine_url", engine_url, longest=2048),
        )
        try:
            request.token_ids.extend(token_ids)
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"token_ids is {shown(token_ids)}, allowed are 32-bit integers", field="tokenIds"
            ) from None
        if bool(request.tokens) == bool(request.token_ids):
            raise InvalidArgument("tokens excludes token_ids: send one of them", field="tokens")
        answer = await self._entered().tries.call("SessionService/PinPrefix", request, pb.PinPrefixResponse)
        return answer.pin

    async def unpin(self, pin_id: str, *, pool: str | None = None) -> bool:
        """Ends a pin; whether there was one. Raises CallFailed."""
        request = pb.UnpinPrefixRequest(pool=self._pool(pool), pin_id=check_id("pin_id", pin_id, required=True))
        answer = await self._entered().tries.call("SessionService/UnpinPrefix", request, pb.UnpinPrefixResponse)
        return answer.unpinned

    async def pins(self, *, session: str = "", pool: str | None = None, stale: bool = False) -> list[pb.Pin]:
        """All pins, of one session where given. Raises CallFailed."""
        core, token = self._entered(), ""
        found: list[pb.Pin] = []
        while True:
            request = pb.ListPinsRequest(
                pool=self._pool(pool),
                session_id=check_id("session_id", session),
                stale=check_flag("stale", stale),
                page_size=PAGE,
                page_token=token,
            )
            answer = await core.tries.call("SessionService/ListPins", request, pb.ListPinsResponse)
            found.extend(answer.pins)
            token = answer.next_page_token
            if not token:
                return found


async def wait_at_most(event: asyncio.Event, limit: float | None) -> None:
    """Waits for the event, at most limit seconds; None does not wait."""
    if limit is None:
        return
    waiting = asyncio.ensure_future(event.wait())
    try:
        # Not wait_for: before Python 3.12 it may swallow a cancellation.
        await asyncio.wait({waiting}, timeout=limit)
    finally:
        waiting.cancel()
