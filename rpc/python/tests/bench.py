"""Multiplexed against one call for each operation, side by side from one process; `make bench` runs it.

A pair is one admission and its release, both durable on three nodes. Absolute rates are those of this machine and
its load; the ratio of interleaved rounds is what carries over.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cluster import Cluster, eventually
from kvgate import AsyncGate


@dataclass(frozen=True)
class Round:
    """What one round measured: pairs per second, and the seconds that each admission took."""

    rate: float
    took: list[float]

    def percentile(self, share: float) -> float:
        return sorted(self.took)[min(int(share * len(self.took)), len(self.took) - 1)]


class Load:
    """Callers that admit and release as fast as they can."""

    def __init__(self, gate: AsyncGate, name: str) -> None:
        self.gate = gate
        self.name = name
        self._numbers = itertools.count()

    async def round(self, callers: int, length: float) -> Round:
        """One round. A pair ends when its release is known; any answer but an admission ends the run."""
        began = time.monotonic()
        took = await asyncio.gather(*(self._caller(began + length) for _ in range(callers)))
        all_took = list(itertools.chain(*took))
        return Round(len(all_took) / (time.monotonic() - began), all_took)

    async def _caller(self, end: float) -> list[float]:
        took: list[float] = []
        while (start := time.monotonic()) < end or not took:
            ticket = f"{self.name}-{next(self._numbers):08d}:0"
            grant = await self.gate.admit(ticket=ticket, prompt_tokens=4000, max_new_tokens=96)
            if not grant.admitted:
                raise RuntimeError(f"{ticket} is answered {grant.decision}")
            took.append(time.monotonic() - start)
            await grant.release_wait()
        return took


async def compare(urls: list[str], callers: list[int], rounds: int, length: float) -> None:
    """Prints one line per number of callers."""
    # Without the budget a slow machine would measure bypasses.
    async with AsyncGate(urls, decision_budget=60) as one, AsyncGate(urls, multiplex=False, decision_budget=60) as two:
        multiplexed, unary = Load(one, "multiplexed"), Load(two, "unary")
        print("CALLERS  MULTIPLEXED pairs/s   p50 ms   p99 ms  UNARY pairs/s   p50 ms   p99 ms   RATIO")
        for count in callers:
            sides: dict[str, list[Round]] = {multiplexed.name: [], unary.name: []}
            for number in range(rounds):
                # Taking turns at going first.
                for load in (multiplexed, unary) if number % 2 == 0 else (unary, multiplexed):
                    sides[load.name].append(await load.round(count, length))
            print(_line(count, sides[multiplexed.name], sides[unary.name]), flush=True)


def _line(callers: int, multiplexed: list[Round], unary: list[Round]) -> str:
    ratio = statistics.median(m.rate / u.rate for m, u in zip(multiplexed, unary, strict=True))
    return f"{callers:7}  {_side(multiplexed, 19)}  {_side(unary, 13)}  {ratio:5.2f}x"


def _side(rounds: list[Round], width: int) -> str:
    rate = statistics.median(r.rate for r in rounds)
    p50, p99 = (1e3 * statistics.median(r.percentile(share) for r in rounds) for share in (0.5, 0.99))
    return f"{rate:{width},.0f}  {p50:7.1f}  {p99:7.1f}"


def main() -> None:
    """Starts three nodes, compares, and checks that nothing is left."""
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--callers", type=int, nargs="+", default=[16, 256, 1024])
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    given = args.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvgate-bench-") as root:
        cluster = Cluster(Path(root), 3, pool_tokens=100_000_000)
        try:
            cluster.start()
            asyncio.run(compare(cluster.urls, given.callers, given.rounds, given.seconds))
            eventually(cluster.nothing_left, "leases or waiters are left")
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
