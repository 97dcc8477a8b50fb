"""Which of several endpoints the next try goes to."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from ._options import shown
from .errors import InvalidArgument

# For so long an endpoint that failed is not preferred, not even on a hint: a leader that the followers
# reach but this process does not must not cost a connect timeout per call.
COOLDOWN = 10.0
# What no URL holds: urlsplit drops line ends without a word.
_ODD = re.compile(r"[\s\x00-\x1f\x7f]")


@dataclass
class Endpoint:
    """One coordinator address, e.g. "http://10.0.0.1:7070"."""

    index: int
    url: str
    authority: str
    failed_at: float | None = None

    def cooling_down(self) -> bool:
        """Whether it failed lately."""
        return self.failed_at is not None and time.monotonic() - self.failed_at < COOLDOWN


class Endpoints:
    """The addresses of one cluster. All calls stick to the one that works: the leader, once known."""

    def __init__(self, addresses: str | Iterable[str]) -> None:
        several = isinstance(addresses, Iterable) and not isinstance(addresses, (str, bytes))
        given = list(addresses) if several else [addresses]
        if not given:
            raise InvalidArgument("endpoints is empty, allowed is one URL or more", field="endpoints")
        self.all = [_parse(i, address) for i, address in enumerate(given)]
        self._current = 0
        # No endpoint served lately; set by whoever gave up.
        self.down = False

    def pick(self) -> Endpoint:
        """The endpoint to try now."""
        return self.all[self._current]

    def worked(self, endpoint: Endpoint) -> None:
        """Notes that the endpoint answered."""
        self.down = False
        endpoint.failed_at = None

    def failed(self, endpoint: Endpoint, leader_hint: str) -> None:
        """Moves on: to the leader that was named, else to the next endpoint that did not fail lately.

        When another call has moved on already, its choice stands.
        """
        endpoint.failed_at = time.monotonic()
        if self.follow(leader_hint) or self._current != endpoint.index:
            return
        size = len(self.all)
        order = [(endpoint.index + step) % size for step in range(1, size)]
        fresh = [i for i in order if not self.all[i].cooling_down()]
        self._current = (fresh or order or [endpoint.index])[0]

    def follow(self, address: str) -> bool:
        """Moves to the endpoint at the address, when it is known and did not fail lately."""
        authority = address.partition("://")[2].rstrip("/") if "://" in address else address
        for endpoint in self.all:
            if authority and endpoint.authority == authority and not endpoint.cooling_down():
                self._current = endpoint.index
                return True
        return False


def _parse(index: int, address: object) -> Endpoint:
    text = address if isinstance(address, str) and not _ODD.search(address) else ""
    try:
        parts = urlsplit(text)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_ok = urlsplit(""), False
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok or not plain:
        raise InvalidArgument(
            f"endpoints holds {shown(address)}, allowed is http://host:port or https://host:port", field="endpoints"
        )
    return Endpoint(index, text.rstrip("/"), parts.netloc)
