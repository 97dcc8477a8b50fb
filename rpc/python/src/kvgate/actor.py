"""Takes the place of a Ray admission actor: the same acquire, release and cancel, kept by kvgate.

For rollout services that ask one actor of their own (as in redai-studio/Relax, `AdmissionCoordinator` and
its client): give them an `AdmissionActor` instead. Requests and answers are the same dictionaries, and each
method may be called plainly or as on an actor handle:

    decision = await actor.acquire({"ticket_id": "req-17:0", "reservation_tokens": 4096})
    decision = await actor.acquire.remote({"ticket_id": "req-17:0", "reservation_tokens": 4096})
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from .gate import AsyncGate
from .grant import Decision, Grant

T = TypeVar("T")

# Keys that metrics have in front in kvgate and not on the actor.
PREFIX = "agentic_kv/"


class Method(Generic[T]):
    """A method that is awaited as `m(...)` or `m.remote(...)`; the latter starts at once, as on an actor."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, T]]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[T]:
        return self._function(*args, **kwargs)

    def remote(self, *args: Any, **kwargs: Any) -> asyncio.Task[T]:
        """Starts the call as a task."""
        return asyncio.get_running_loop().create_task(self._function(*args, **kwargs))


class AdmissionActor:
    """One per process, over one gate. All processes share the pool through the coordinator, not through it."""

    def __init__(self, gate: AsyncGate, **args: Any) -> None:
        """args are those of `AsyncGate.admit` for every acquire, e.g. mode; a request may carry them too."""
        self._gate = gate
        self._args = args
        self._grants: dict[str, list[Grant]] = {}
        self._step = 0
        self.acquire: Method[dict[str, Any]] = Method(self._acquire)
        self.release: Method[None] = Method(self._release)
        self.cancel: Method[None] = Method(self._cancel)
        self.metrics: Method[dict[str, float]] = Method(self._metrics)
        self.start: Method[None] = Method(self._start)
        self.shutdown: Method[None] = Method(self._shutdown)

    async def _start(self) -> None:
        """Nothing to do: the coordinator polls the engines."""

    async def _acquire(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Decides on request["ticket_id"], for request["reservation_tokens"], unless request["protected"].

        Cancelling the await leaves neither a waiter nor a lease behind. Raises as `AsyncGate.admit`.
        """
        args = {**self._args, **request}
        ticket, tokens = str(args.pop("ticket_id")), int(args.pop("reservation_tokens", 0))
        # The actor takes requests for nothing; the coordinator wants to know what is asked for.
        args["reservation_tokens"] = max(tokens, 1)
        grant = await self._gate.admit(ticket=ticket, **args)
        if grant.lease is None:
            grant.release()
        else:
            # A retry of a ticket that is held shares its lease: one release ends it for both.
            self._grants.setdefault(grant.lease, []).append(grant)
        return answer(grant.decision)

    async def _release(self, lease_id: str) -> None:
        """Ends a lease, by the id that acquire answered. Returns at once."""
        held = self._grants.pop(lease_id, [])
        for grant in held:
            grant.release()
        if not held:
            await self._gate.release(lease=lease_id)

    async def _cancel(self, ticket_id: str) -> None:
        """Takes a waiter out or ends the ticket's lease; else the next acquire of it bypasses."""
        for lease, held in list(self._grants.items()):
            if held[0].ticket == ticket_id:
                await self._release(lease)
                return
        await self._gate.cancel(ticket_id)

    async def _metrics(self, reset: bool = False) -> dict[str, float]:
        """The step metrics without their prefix; with reset those since the last, and a new window begins."""
        if reset:
            drained = await self._gate.drain_step(self._step, run_id=self._gate.holder_id or "")
            self._step += 1
            return {key.removeprefix(PREFIX): value for key, value in drained.items()}
        budget = await self._gate.budget()
        return {
            "budget/ceiling": float(budget.ceiling),
            "budget/reserved": float(budget.reserved),
            "budget/available_tokens": float(budget.available),
            "budget/lease_count": float(budget.leases),
            "budget/epoch": float(budget.epoch),
            "budget/degraded": float(budget.degraded),
            "admission/waiting": float(budget.waiting),
        }

    async def _shutdown(self) -> None:
        """Closes the gate, which releases what is held."""
        self._grants.clear()
        await self._gate.close()


def answer(decision: Decision) -> dict[str, Any]:
    """A decision in the actor's form."""
    return {
        "action": decision.action,
        "reason": decision.reason,
        "ticket_id": decision.ticket,
        "reservation_tokens": decision.reservation_tokens,
        "lease_id": decision.lease,
        "owner_epoch": decision.owner_epoch if decision.lease else -1,
        "wait_s": decision.waited,
    }
