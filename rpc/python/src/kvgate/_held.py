"""What the gate itself keeps of a grant. It outlives the caller's `Grant`, so that one which was dropped ends too."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ._tickets import TicketKey
from .stats import Event
from .v1 import admission_pb2 as pb
from .v1 import types_pb2

if TYPE_CHECKING:
    from ._core import Core
    from ._settle import Settlement
    from .grant import Decision

# The shortest pause before a lease is renewed, or renewed again.
RENEW_RETRY = 0.25


class Held:
    """A decision and what is still to be done about it. Belongs to the gate's event loop."""

    def __init__(self, core: Core, decision: Decision, *, term: float, tracked: bool, dirty: bool) -> None:
        self._core = core
        self.decision = decision
        self.key = TicketKey(decision.pool, decision.ticket)
        # A coordinator knows about it and wants to hear its end.
        self.tracked = tracked
        # It is a bypass, but an earlier try of the same acquire may have left something behind.
        self.dirty = dirty
        self.usage: types_pb2.Usage | None = None
        self.gone = asyncio.Event()
        self.released = False
        # A release is about to begin, on the loop.
        self.leaving = False
        # The release under way; None while held, and for what nobody tracks.
        self.settlement: Settlement | None = None
        self.expires_at = self.renew_at = 0.0
        self.extend(time.monotonic(), term)

    def extend(self, asked: float, term: float) -> None:
        """Notes that the lease lasts for term seconds from when it was asked for."""
        self.expires_at = asked + term
        self.renew_at = asked + max(term / 2, RENEW_RETRY)

    def lose(self) -> None:
        """Notes that the lease is gone, unless it was released meanwhile."""
        if self.gone.is_set() or self.released:
            return
        self.gone.set()
        core, key = self._core, self.key
        core.keeper.unrenew(self)
        core.recorder.record(Event("lost", pool=key.pool, ticket=key.ticket))
        core.logs.lost.warn(pool=key.pool, ticket=key.ticket, grant=self.decision.number)

    def release_message(self) -> pb.ReleaseRequest:
        """Tells the coordinator of the end."""
        return pb.ReleaseRequest(
            pool=self.key.pool,
            ticket_id=self.key.ticket,
            lease_id=self.decision.lease or "",
            grant=self.decision.number,
            holder_id=self._core.options.holder_id or "",
            usage=self.usage,
        )
