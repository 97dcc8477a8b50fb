"""Keeps the calls of this process on one ticket in order.

A new acquire waits until the process's own releases and cancels of the same ticket are known, since one
that arrived late would take away the new lease.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import NamedTuple


def new_call_id() -> int:
    """Draws the id of a call, which is not 0."""
    return secrets.randbelow(2**64 - 1) + 1


class TicketKey(NamedTuple):
    """Names a ticket."""

    pool: str
    ticket: str


@dataclass
class _State:
    # The call id of the acquires that share the state. They end together: the last of them has the
    # coordinator remember that they are over, and whoever comes after that gets a new state.
    call: int = field(default_factory=new_call_id)
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

    def try_enter(self, key: TicketKey) -> asyncio.Event | None:
        """Starts an acquire, which needs one leave or release, when nothing of an earlier one is pending.

        Else returns the event to wait for before the next try.
        """
        state = self._states.setdefault(key, _State())
        if state.settling:
            return state.settled
        state.using += 1
        return None

    def call(self, key: TicketKey) -> int:
        """The call id of an acquire that was entered."""
        return self._states[key].call

    def leave(self, key: TicketKey, dirty: bool) -> int:
        """Ends a use of the ticket. dirty: it may have left a waiter or a lease behind, or a copy of it may
        still be under way.

        When it returns a call, and not 0, the caller must cancel that and then call settled.
        """
        state = self._states[key]
        state.using -= 1
        state.dirty = state.dirty or dirty
        if state.using == 0 and state.dirty:
            self._settle(state)
            return state.call
        self._drop(key, state)
        return 0

    def release(self, key: TicketKey, dirty: bool) -> int:
        """Ends a use whose lease is about to be released, and returns the call that ends with it, or 0.

        The caller must call settled when all that is known.
        """
        state = self._states[key]
        state.using -= 1
        state.dirty = state.dirty or dirty
        ended = state.call if state.using == 0 and state.dirty else 0
        self._settle(state)
        return ended

    def settled(self, key: TicketKey) -> None:
        """Ends what leave or release began."""
        state = self._states[key]
        state.settling -= 1
        if state.settling == 0:
            state.settled.set()
            self._drop(key, state)

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
