"""What an admission is answered with."""

from __future__ import annotations

import time
import warnings
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ._options import check_seconds, check_text, check_tokens
from .errors import LeaseGone
from .v1 import admission_pb2 as pb
from .v1 import types_pb2

if TYPE_CHECKING:
    from ._core import Core
    from ._held import Held

Action = Literal["admit", "bypass"]


@dataclass(frozen=True)
class Binding:
    """Where the router placed the session's first turn."""

    engine_url: str
    dp_rank: int


@dataclass(frozen=True)
class Decision:
    """What was decided on a ticket. Amounts are tokens, times seconds."""

    # Both actions let the caller generate; only "admit" holds a lease.
    action: Action
    # "capacity_available", "protected", "degraded", "aged", "cancelled", "oversized", "disabled",
    # "out_of_scope", "session_closing" or "abandoned".
    reason: str
    pool: str
    ticket: str
    # Charged (admit), or what would have been charged (bypass).
    reservation_tokens: int
    # "<epoch>:<ticket>", None on bypass.
    lease: str | None = None
    # Unique to this grant; releases and renewals carry it as a fence. 0 on bypass.
    number: int = 0
    owner_epoch: int = 0
    # Time in the queue.
    waited: float = 0.0
    binding: Binding | None = None
    warnings: tuple[str, ...] = ()
    # Why the gate let the attempt through by itself; None when a coordinator decided.
    cause: BaseException | None = None


def lower(enum_name: str, prefix: str) -> str:
    """The short form of an enum value: "REASON_AGED" is "aged"."""
    return enum_name.removeprefix(prefix).lower()


def decision_of(pool: str, answer: pb.AcquireResponse) -> Decision:
    """The coordinator's answer in the form for callers."""
    binding = None
    if answer.HasField("binding"):
        binding = Binding(answer.binding.engine_url, answer.binding.dp_rank)
    known = answer.reason in types_pb2.Reason.values()
    return Decision(
        action="admit" if answer.action == types_pb2.ACTION_ADMIT else "bypass",
        reason=lower(types_pb2.Reason.Name(answer.reason), "REASON_") if known else f"reason_{answer.reason}",
        pool=pool,
        ticket=answer.ticket_id,
        reservation_tokens=answer.reservation_tokens,
        lease=answer.lease_id or None,
        number=answer.grant,
        owner_epoch=answer.owner_epoch,
        waited=seconds(answer.waited),
        binding=binding,
        warnings=tuple(answer.warnings),
    )


def seconds(duration: object) -> float:
    """A protobuf Duration in seconds."""
    return float(getattr(duration, "seconds", 0)) + float(getattr(duration, "nanos", 0)) / 1e9


class Grant:
    """The right to make one generate call. Release it when the call has ended.

    One that is dropped without a release is released when it is collected, with a ResourceWarning and a line
    on logger "kvgate": hold on to it for as long as the call runs.

    All fields of `Decision` are attributes: `action`, `reason`, `lease`, `binding`, `warnings`, `waited`…
    """

    def __init__(self, core: Core, held: Held) -> None:
        self._core = core
        self._held = held
        decision = held.decision
        self.decision = decision
        self.action: Action = decision.action
        self.reason = decision.reason
        self.pool = decision.pool
        self.ticket = decision.ticket
        self.reservation_tokens = decision.reservation_tokens
        self.lease = decision.lease
        self.number = decision.number
        self.owner_epoch = decision.owner_epoch
        self.waited = decision.waited
        self.binding = decision.binding
        self.warnings = decision.warnings
        self.cause = decision.cause

    def __del__(self) -> None:
        # Nobody can release it any more, and it must not be renewed for ever.
        held = getattr(self, "_held", None)
        if (
            held is None
            or held.released
            or held.leaving
            or not held.tracked
            or not self._core.release_soon(held, dropped=True)
        ):
            return
        warnings.warn(
            f"grant of ticket {self.ticket!r} was dropped without release(): use 'async with gate.admit(...)'",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def __repr__(self) -> str:
        return f"<kvgate.Grant {self.ticket!r} {self.action} {self.reason} lease={self.lease!r}>"

    @property
    def admitted(self) -> bool:
        """Whether the ledger is charged."""
        return self.action == "admit"

    @property
    def expires_in(self) -> float:
        """Seconds until the lease ends unless it is renewed, which the gate does by itself; 0 on bypass."""
        return max(0.0, self._held.expires_at - time.monotonic()) if self.admitted else 0.0

    @property
    def lost(self) -> bool:
        """The lease is gone while the grant is held: it expired, or the coordinator reclaimed it.

        The generate call may go on; its tokens are just not accounted for any more.
        """
        return self._held.gone.is_set()

    def usage(
        self,
        *,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        engine_url: str = "",
        outcome: str = "",
    ) -> None:
        """Says what the attempt really used; the release reports it. The last call counts.

        Amounts are tokens; outcome is free text of at most 64 bytes, such as "stop", "length", "abort" or
        "error". Raises InvalidArgument.
        """
        self._held.usage = types_pb2.Usage(
            prompt_tokens=check_tokens("prompt_tokens", prompt_tokens),
            completion_tokens=check_tokens("completion_tokens", completion_tokens),
            cached_tokens=check_tokens("cached_tokens", cached_tokens),
            engine_url=check_text("engine_url", engine_url, longest=2048),
            outcome=check_text("outcome", outcome, longest=64),
        )

    def release(self) -> None:
        """Ends the grant, from any thread. Returns at once and never fails, but for WrongProcess after a fork.

        The release is sent in the background until it is known to have arrived or the lease is over. Only
        the first call counts.
        """
        self._core.release_anywhere(self._held)

    async def release_wait(self) -> None:
        """Like release, but waits until the release is known to have arrived.

        Raises CallFailed when the gate gave up. Cancelling the wait does not stop the release.
        """
        self._core.guard()
        self.release()
        settlement = self._held.settlement
        if settlement is not None:
            await settlement.done.wait()
            if settlement.error is not None:
                raise settlement.error.public() from settlement.error

    async def renew(self, ttl: float | None = None) -> None:
        """Moves the lease's end to now + ttl seconds; None means the one it was granted with.

        The gate does so by itself. Raises LeaseGone when there is no such lease any more, CallFailed when
        no coordinator answers; does nothing on a bypass.
        """
        self._core.guard()
        if ttl is not None:
            check_seconds("ttl", ttl, positive=True)
        if self.admitted and not await self._core.keeper.renew([self._held], ttl):
            raise LeaseGone(f"lease {self.lease!r} is gone", code="not_found")

    def wait_lost(self) -> Awaitable[bool]:
        """Waits until the lease is found to be gone."""
        return self._held.gone.wait()
