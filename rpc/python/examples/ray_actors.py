"""Sixteen Ray actors that share one pool. Usage: ray_actors.py [NODE…], with `pip install 'kvgate[ray]'`.

Each actor is a process with a gate of its own, which it makes on first use: a gate does not travel between
processes. They share the pool through the coordinator; no actor of yours stands in the middle.
"""

import asyncio
import sys

import ray

from kvgate import AsyncGate

ACTORS, TICKETS = 16, 25


class Worker:
    """One rollout worker."""

    def __init__(self, name: str, nodes: list[str]) -> None:
        self.name = name
        self.gate = AsyncGate(nodes)

    async def generate(self, n: int) -> str:
        """One attempt, which sleeps where yours would call the engine."""
        async with self.gate.admit(ticket=f"{self.name}-{n}:0", prompt_tokens=2_000, max_new_tokens=2_000) as grant:
            await asyncio.sleep(0.05)
            grant.usage(prompt_tokens=2_000, completion_tokens=700, outcome="stop")
            return grant.reason

    async def close(self) -> int:
        """Waits until the last releases are known; returns how many were not."""
        return await self.gate.close()


def main(nodes: list[str]) -> None:
    ray.init(include_dashboard=False)
    actor = ray.remote(num_cpus=0)(Worker)
    workers = [actor.remote(f"worker-{n}", nodes) for n in range(ACTORS)]
    reasons = ray.get([w.generate.remote(n) for w in workers for n in range(TICKETS)])
    unknown = sum(ray.get([w.close.remote() for w in workers]))
    print(f"{len(reasons)} attempts: " + ", ".join(f"{reasons.count(r)} {r}" for r in sorted(set(reasons))))
    print(f"releases that were not answered: {unknown}")
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:] or ["http://127.0.0.1:7070"])
