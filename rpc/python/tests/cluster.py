"""Real kvgate nodes for the tests: processes on loopback ports, killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx

# Where `make build` leaves the commands.
BIN = Path(__file__).resolve().parents[3] / "bin"
START_TIMEOUT = 30.0


def command(name: str) -> str:
    """The path of a built command."""
    path = BIN / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run `make test-python`, or make build")
    return str(path)


def eventually(ok: Callable[[], bool], what: str, limit: float = START_TIMEOUT) -> None:
    """Polls until ok answers True; fails the test otherwise. Not on an event loop, which it would hold up."""
    assert asyncio._get_running_loop() is None
    end = time.monotonic() + limit
    while not ok():
        if time.monotonic() > end:
            raise AssertionError(f"after {limit:.0f} s: {what}")
        time.sleep(0.02)


async def aeventually(ok: Callable[[], bool], what: str, limit: float = START_TIMEOUT) -> None:
    """The same, letting the event loop run."""
    end = time.monotonic() + limit
    while not ok():
        if time.monotonic() > end:
            raise AssertionError(f"after {limit:.0f} s: {what}")
        await asyncio.sleep(0.02)


_given: set[int] = set()


def free_port() -> int:
    """A port below the range that the kernel takes outgoing ports from, so that it is free after a kill."""
    for _ in range(1000):
        port = random.randrange(18_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise AssertionError("no free port")


class Process:
    """One child process with its output in a file."""

    def __init__(self, args: list[str], log: Path) -> None:
        self.args = args
        self.log = log
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; the child goes when this process does."""
        with self.log.open("ab") as out:
            self._child = subprocess.Popen(self.args, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._child is not None and self._child.poll() is None

    def kill(self) -> None:
        """Ends it without a chance to say goodbye."""
        if self._child is not None and self.alive:
            self._child.send_signal(signal.SIGKILL)
            self._child.wait()

    def signal(self, number: int) -> None:
        """Sends a signal, e.g. SIGSTOP."""
        os.kill(self.pid, number)


class Node(Process):
    """One coordinator node."""

    def __init__(self, name: str, root: Path, listen: int, raft: int, more: list[str]) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{listen}"
        self._last: dict[str, Any] = {}
        serve = [command("kvgate"), "serve", "--node-id", name, "--data-dir", str(root / name)]
        ports = ["--listen", f"127.0.0.1:{listen}", "--raft-listen", f"127.0.0.1:{raft}"]
        super().__init__(serve + ports + more, root / f"{name}.log")

    def ready(self) -> bool:
        """Whether it knows a leader and has caught up."""
        assert self.alive, f"{self.name} ended: {self.log.read_text()[-2000:]}"
        try:
            return httpx.get(f"{self.url}/readyz", timeout=1, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def rpc(self, method: str, timeout: float = 5.0, **message: Any) -> dict[str, Any]:
        """A JSON call."""
        answer = httpx.post(f"{self.url}/kvgate.v1.{method}", json=message, timeout=timeout, trust_env=False)
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body


class Cluster:
    """One or three nodes and one simulated engine that gives the pool its capacity."""

    def __init__(self, root: Path, size: int, pool_tokens: int = 100_000) -> None:
        self.root = root
        ports = [(free_port(), free_port()) for _ in range(size)]
        self.engine_url = self._start_engine(pool_tokens)
        more = ["--engines", self.engine_url]
        if size == 1:
            more.append("--bootstrap")
        else:
            peers = ",".join(f"n{i}=127.0.0.1:{raft}" for i, (_, raft) in enumerate(ports))
            more += ["--bootstrap-expect", str(size), "--peers", peers]
        self.nodes = [Node(f"n{i}", root, listen, raft, more) for i, (listen, raft) in enumerate(ports)]

    def _start_engine(self, pool_tokens: int) -> str:
        args = [
            command("enginesim"),
            "-print-json",
            "-metrics-bytes",
            "0",
            "-speed",
            "20",
            "-pool-tokens",
            str(pool_tokens),
        ]
        self._engine = Process(args, self.root / "engine.json")
        self._engine.start()
        said = self.root / "engine.json"
        eventually(lambda: said.exists() and said.read_text().endswith("\n"), "the engine does not start")
        url: str = json.loads(said.read_text())["engines"][0]
        return url

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def start(self) -> None:
        """Starts all nodes and waits until the pool has capacity."""
        for node in self.nodes:
            node.start()
        self.wait_ready()
        eventually(lambda: not self.budget()["degraded"], "the pool stays degraded")

    def wait_ready(self) -> None:
        """Waits until all nodes are ready."""
        for node in self.nodes:
            eventually(node.ready, f"{node.name} is not ready: see {node.log}")

    def stop(self) -> None:
        """Ends everything."""
        for process in [*self.nodes, self._engine]:
            process.kill()

    def any_node(self) -> Node:
        """A node that runs."""
        return next(node for node in self.nodes if node.alive)

    def budget(self) -> dict[str, Any]:
        return self.any_node().rpc("ObserveService/GetBudget")

    def leader(self) -> Node | None:
        """The node that leads, if a live node knows."""
        for node in self.nodes:
            if not node.alive:
                continue
            try:
                leader = node.rpc("ClusterService/GetStatus", timeout=1).get("leaderId")
            except httpx.HTTPError:
                continue
            for candidate in self.nodes:
                if candidate.name == leader and candidate.alive:
                    return candidate
        return None

    def settings(self, **settings: Any) -> None:
        """Changes settings of the default pool."""
        self.any_node().rpc("ClusterService/UpdateSettings", settings=settings)

    def journal(self, *kinds: str) -> list[dict[str, Any]]:
        """The journal's events of these kinds, in order."""
        events: list[dict[str, Any]] = []
        token = ""
        while True:
            page = self.any_node().rpc(
                "ObserveService/ReadJournal", timeout=20, kinds=list(kinds), pageSize=10_000, pageToken=token
            )
            events += page["events"]
            token = page["nextPageToken"]
            if not token:
                return events

    def nothing_left(self) -> bool:
        """No lease and no waiter."""
        try:
            budget = self.budget()
        except httpx.HTTPError:
            return False
        return [budget[k] for k in ("leases", "waiting", "reserved")] == ["0", "0", "0"]
