"""What a gate did: events for a metrics hook, and counters."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

EventKind = Literal[
    "admitted",
    "bypassed",
    "degraded",
    "retry",
    "release_retry",
    "released",
    "cancelled",
    "unsettled",
    "lost",
    "dropped",
    "heartbeat",
    "session_failure",
    "session_closed",
    "close_retry",
    "close_lost",
    "error",
]

logger = logging.getLogger("kvgate")
LOG_INTERVAL = 10.0


@dataclass(frozen=True)
class Event:
    """One thing the gate did. What does not apply is empty or 0.

    kind: "admitted" and "bypassed" (reason says why) are decisions; "degraded" comes in addition when
    the gate decided by itself because of `error`; "retry" and "release_retry" are repeated tries of a
    foreground and of a background call; "released" and "cancelled" are known to have happened;
    "unsettled": a release or cancel was given up; "lost": a lease that is still held is gone;
    "dropped": a grant was collected without a release and is released by the gate;
    "session_failure": a session could not be opened; "session_closed": a coordinator has the close of a
    session or a group, "close_retry": a try to send it is repeated, "close_lost": it was given up;
    "error": a call raised `error`.
    """

    kind: EventKind
    pool: str = ""
    ticket: str = ""
    # Of a close.
    session: str = ""
    group: str = ""
    reason: str = ""
    # Seconds spent in the queue.
    waited: float = 0.0
    error: BaseException | None = None


@dataclass(frozen=True)
class Stats:
    """Counts of events since the gate was made. `degraded` bypasses are in `bypassed` too."""

    admitted: int = 0
    # Decisions of either action that came after a wait in the queue.
    waited: int = 0
    # By reason.
    bypassed: dict[str, int] = field(default_factory=dict)
    degraded: int = 0
    retries: int = 0
    release_retries: int = 0
    released: int = 0
    cancelled: int = 0
    unsettled: int = 0
    lost: int = 0
    # Grants that were collected without a release.
    dropped: int = 0
    heartbeats: int = 0
    # Sessions that could not be opened.
    session_failures: int = 0
    sessions_closed: int = 0
    close_retries: int = 0
    closes_lost: int = 0
    errors: int = 0


class Recorder:
    """Counts events and passes them to the hook. Safe for use from several threads."""

    def __init__(self, hook: Callable[[Event], None] | None) -> None:
        self._hook = hook
        self._lock = threading.Lock()
        self._kinds: Counter[str] = Counter()
        self._bypassed: Counter[str] = Counter()
        self._waited = 0
        self._hook_log = RareLog("kvgate metrics hook raised; its event is counted all the same")

    def record(self, event: Event) -> None:
        """Counts one event. A hook that raises is logged and never reaches the rollout."""
        with self._lock:
            self._kinds[event.kind] += 1
            if event.kind in ("admitted", "bypassed"):
                self._waited += event.waited > 0
            if event.kind == "bypassed":
                self._bypassed[event.reason] += 1
        if self._hook is None:
            return
        try:
            self._hook(event)
        except Exception as e:
            self._hook_log.warn(error=e)

    def snapshot(self) -> Stats:
        """The counts so far."""
        with self._lock:
            k = self._kinds
            return Stats(
                admitted=k["admitted"],
                waited=self._waited,
                bypassed=dict(self._bypassed),
                degraded=k["degraded"],
                retries=k["retry"],
                release_retries=k["release_retry"],
                released=k["released"],
                cancelled=k["cancelled"],
                unsettled=k["unsettled"],
                lost=k["lost"],
                dropped=k["dropped"],
                heartbeats=k["heartbeat"],
                session_failures=k["session_failure"],
                sessions_closed=k["session_closed"],
                close_retries=k["close_retry"],
                closes_lost=k["close_lost"],
                errors=k["error"],
            )


class RareLog:
    """Logs one kind of trouble at most once in ten seconds, and says how often it was silent."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._lock = threading.Lock()
        self._next = float("-inf")
        self._suppressed = 0

    def warn(self, **facts: object) -> None:
        """Logs the facts, or counts the line as suppressed."""
        now = time.monotonic()
        with self._lock:
            if now < self._next:
                self._suppressed += 1
                return
            silent, self._suppressed, self._next = self._suppressed, 0, now + LOG_INTERVAL
        text = " ".join(f"{key}={value!r}" for key, value in facts.items())
        logger.warning("%s %s suppressed=%d", self._message, text, silent)
