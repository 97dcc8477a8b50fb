"""Keeps alive what this process has: heartbeats of the holder, and renewal of leases at half their time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from ._failure import Failure, nonsense
from ._held import RENEW_RETRY, Held
from .errors import KvgateError
from .grant import seconds
from .v1 import admission_pb2 as pb

if TYPE_CHECKING:
    from ._core import Core

# What the holder TTL is taken to be until a heartbeat tells.
FIRST_HOLDER_TTL = 15.0
# Keeps a nonsense TTL from turning into a flood.
SHORTEST_BEAT = 0.2
# The most leases one Renew may name.
RENEW_BATCH = 10_000


class Keeper:
    """Both loops start on demand and end when there is nothing to do, or with the gate."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # What needs heartbeats: acquires in progress and tracked grants.
        self._live = 0
        self._beating = False
        self._renewing = False
        # Set when a grant is due before the renew loop means to look again.
        self._added = asyncio.Event()
        self._wake_at = 0.0
        self.held: set[Held] = set()
        self._renewable: set[Held] = set()

    def enter(self) -> None:
        """Something needs heartbeats from now on. Each enter needs one leave or drop."""
        self._live += 1
        if self._core.options.holder_id and not self._beating:
            self._beating = self._core.loops.start(self._beat(), "kvgate-heartbeat")

    def leave(self) -> None:
        """Ends an enter."""
        self._live -= 1

    def hold(self, grant: Held) -> None:
        """Takes a tracked grant into care."""
        self.held.add(grant)
        if grant.decision.lease is None:
            return
        self._renewable.add(grant)
        if grant.renew_at < self._wake_at:
            self._added.set()
        if self._core.options.auto_renew and not self._renewing:
            self._renewing = self._core.loops.start(self._renew_due(), "kvgate-renew")

    def drop(self, grant: Held) -> None:
        """Ends the care for a tracked grant."""
        self._live -= 1
        self.held.discard(grant)
        self._renewable.discard(grant)

    def unrenew(self, grant: Held) -> None:
        """Stops renewing a lease that is gone."""
        self._renewable.discard(grant)

    async def _beat(self) -> None:
        """The heartbeat loop. The first goes out at once, to learn the holder TTL."""
        ttl = FIRST_HOLDER_TTL
        try:
            while self._live:
                ttl = await self._beat_once(ttl)
                await asyncio.sleep(max(ttl / 3, SHORTEST_BEAT))
        finally:
            self._beating = False

    async def _beat_once(self, ttl: float) -> float:
        before = list(self._renewable)
        interval = max(ttl / 3, SHORTEST_BEAT)
        try:
            answer = await asyncio.wait_for(self._core.heartbeat(), interval)
        except (KvgateError, asyncio.TimeoutError) as e:
            self._core.logs.heartbeat.warn(error=str(e) or "no answer in time")
            return ttl
        if answer.leases == 0 and answer.waiters == 0:
            for grant in before:
                grant.lose()
        told = seconds(answer.ttl)
        return told if told > 0 else ttl

    async def _renew_due(self) -> None:
        """The renew loop: sleeps until the first lease is at half its time."""
        try:
            while self._renewable:
                now = time.monotonic()
                due = [g for g in self._renewable if g.renew_at <= now]
                if due:
                    # Those that are nearly there come along.
                    soon = {g for g in self._renewable if g.renew_at - (g.expires_at - g.renew_at) / 4 <= now}
                    await self._renew_together(list(soon.union(due)))
                    continue
                self._added.clear()
                self._wake_at = min(g.renew_at for g in self._renewable)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._added.wait(), self._wake_at - now)
        finally:
            self._renewing = False

    async def _renew_together(self, grants: list[Held]) -> None:
        pools: dict[str, list[Held]] = defaultdict(list)
        for grant in grants:
            pools[grant.key.pool].append(grant)
        for group in pools.values():
            for start in range(0, len(group), RENEW_BATCH):
                await self._renew_batch(group[start : start + RENEW_BATCH])

    async def _renew_batch(self, batch: list[Held]) -> None:
        try:
            await self.renew(batch, None)
        except KvgateError as e:
            self._core.logs.renew.warn(pool=batch[0].key.pool, leases=len(batch), error=str(e))
            now = time.monotonic()
            for grant in batch:
                left = grant.expires_at - now
                grant.renew_at = now + max(left / 4, RENEW_RETRY)
                if left <= 0:
                    grant.lose()

    async def renew(self, grants: list[Held], ttl: float | None) -> bool:
        """Renews leases of one pool in one call; False when any is gone. Raises KvgateError."""
        request = pb.RenewRequest(
            pool=grants[0].key.pool,
            lease_ids=[g.decision.lease or "" for g in grants],
            grants=[g.decision.number for g in grants],
        )
        if ttl is not None:
            request.ttl.FromNanoseconds(int(ttl * 1e9))
        asked = time.monotonic()
        answer = await self._core.tries.call("AdmissionService/Renew", request, pb.RenewResponse)
        if len(answer.leases) != len(grants):
            failure: Failure = nonsense(f"{len(answer.leases)} answers for {len(grants)} leases")
            raise failure.public()
        for grant, lease in zip(grants, answer.leases, strict=True):
            if lease.renewed:
                grant.extend(asked, seconds(lease.expires_in))
            else:
                grant.lose()
        return all(lease.renewed for lease in answer.leases)
