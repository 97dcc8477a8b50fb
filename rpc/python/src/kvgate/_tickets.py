"""Keeps the calls of this process on one ticket in order.

A new acquire waits until the process's own releases and cancels of the same ticket are known, since one
that arrived late would take away the new lease.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import NamedTuple

# The coordinator keeps the mark of a cancel for one lease TTL, at most max_ttl (3600 s by default).
MARK_LIFE = 3600.0


class TicketKey(NamedTuple):
    """Names a ticket."""

    pool: str
    ticket: str


@dataclass
class _State:
    # Acquires in progress and grants held.
    using: int = 0
    # An acquire was abandoned while others used the ticket; the last of them cancels it.
    dirty: bool = False
    # Releases and cancels whose outcome is not known yet.
    settling: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class Tickets:
    """What this process has to do with each ticket. Belongs to the gate's event loop."""

    def __init__(self) -> None:
        self._states: dict[TicketKey, _State] = {}
        self._marks: dict[TicketKey, float] = {}
        self._next_purge = 0.0

    def try_enter(self, key: TicketKey) -> asyncio.Event | None:
        """Starts an acquire, which needs one leave or release, when nothing of an earlier one is pending.

        Else returns the event to wait for before the next try.
        """
        state = self._states.setdefault(key, _State())
        if state.settling:
            return state.settled
        state.using += 1
        return None

    def leave(self, key: TicketKey, dirty: bool) -> bool:
        """Ends a use of the ticket. dirty: it may have left a waiter or a lease behind.

        When it returns True the caller must cancel the ticket and then call settled.
        """
        state = self._states[key]
        state.using -= 1
        state.dirty = state.dirty or dirty
        if state.using == 0 and state.dirty:
            self._settle(state)
            return True
        self._drop(key, state)
        return False

    def release(self, key: TicketKey, dirty: bool) -> bool:
        """Ends a use whose lease is about to be released, and says whether to cancel it as well.

        The caller must call settled when all that is known.
        """
        state = self._states[key]
        state.using -= 1
        state.dirty = state.dirty or dirty
        cancel = state.using == 0 and state.dirty
        self._settle(state)
        return cancel

    def settled(self, key: TicketKey) -> None:
        """Ends what leave or release began."""
        state = self._states[key]
        state.settling -= 1
        if state.settling == 0:
            state.settled.set()
            self._drop(key, state)

    def mark(self, key: TicketKey) -> None:
        """Remembers that the gate's own cancel may make the next acquire bypass as cancelled."""
        now = time.monotonic()
        self._marks[key] = now
        if now < self._next_purge:
            return
        self._next_purge = now + MARK_LIFE / 4
        self._marks = {k: at for k, at in self._marks.items() if now - at <= MARK_LIFE}

    def take_mark(self, key: TicketKey) -> bool:
        """Whether such a mark may have existed; forgets it."""
        at = self._marks.pop(key, None)
        return at is not None and time.monotonic() - at <= MARK_LIFE

    @staticmethod
    def _settle(state: _State) -> None:
        if state.using == 0:
            state.dirty = False
        if state.settling == 0:
            state.settled = asyncio.Event()
        state.settling += 1

    def _drop(self, key: TicketKey, state: _State) -> None:
        if state.using == 0 and state.settling == 0:
            self._states.pop(key, None)
