"""Background tasks of a gate: each has a name and ends with the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from .stats import RareLog


class Tasks:
    """A set of background tasks that can be waited for and sealed. Belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._sealed = False
        self._log = RareLog("kvgate background task failed, which is a bug")

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> bool:
        """Starts a task, or returns False when no more may start.

        Not only while the loop runs: a coroutine that is collected after its loop's end comes here, too.
        """
        if self._sealed or self._loop.is_closed():
            work.close()
            return False
        task = self._loop.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.warn(task=task.get_name(), error=task.exception())

    async def wait(self, timeout: float) -> int:
        """Waits until nothing runs, at most timeout seconds; returns how many still do."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while self._running and loop.time() < end:
            await asyncio.wait(set(self._running), timeout=end - loop.time())
        return len(self._running)

    async def stop(self) -> None:
        """Lets nothing new start, cancels what runs and waits for its end."""
        self._sealed = True
        while self._running:
            # More than once: before Python 3.12 wait_for may swallow a cancellation.
            for task in self._running:
                task.cancel()
            await asyncio.wait(set(self._running), timeout=0.5)
