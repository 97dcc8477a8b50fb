"""Unary Connect calls with protobuf bodies, over httpx2.

Rather than the Connect runtime for Python: that one needs Python 3.11, and its Rust HTTP client hangs in a
forked child when the parent used it before, and data loaders fork.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import ssl
from typing import Any, TypeVar

import httpx2 as httpx
from google.protobuf.message import DecodeError, Message

from ._failure import Failure, nonsense
from .v1 import types_pb2

M = TypeVar("M", bound=Message)

# The node that leads, in every answer of a node that knows.
LEADER_HEADER = "kvgate-leader"
CONNECT_TIMEOUT = 1.0
MAX_ANSWER = 64 << 20

_CODE_OF_STATUS = {
    400: "internal",
    401: "unauthenticated",
    403: "permission_denied",
    404: "unimplemented",
    429: "unavailable",
    502: "unavailable",
    503: "unavailable",
    504: "unavailable",
}


class Transport:
    """Makes single calls; it belongs to one event loop. Close it."""

    def __init__(self, *, token: str | None, verify: ssl.SSLContext | bool) -> None:
        self.closed = False
        headers = {"content-type": "application/proto", "connect-protocol-version": "1"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        # Unlimited, because each waiting ticket of an older server holds a connection; proxies of the
        # environment are ignored: the coordinator is on the cluster's own network.
        transport = httpx.AsyncHTTPTransport(
            verify=verify,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30),
            socket_options=_keepalive(),
        )
        self._client = httpx.AsyncClient(transport=transport, headers=headers, trust_env=False, follow_redirects=False)

    async def call(
        self,
        base: str,
        method: str,
        request: Message,
        answer: type[M],
        timeout: float,
        connect: float = CONNECT_TIMEOUT,
    ) -> tuple[M, str]:
        """Makes one call, for at most timeout seconds, and returns the answer and the leader's address.

        connect is the longest time to make a connection, in seconds.

        Raises Failure, and CancelledError when the caller is cancelled: then, as after a Failure
        without not_sent, the call may have been carried out.
        """
        work = asyncio.ensure_future(self._post(base, method, request, timeout, connect))
        try:
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            await asyncio.wait({work}, timeout=timeout)
        except asyncio.CancelledError:
            _abandon(work)
            raise
        if not work.done():
            _abandon(work)
            raise Failure(f"no answer within {timeout:.1f} s", code="deadline_exceeded")
        status, headers, body = work.result()
        leader = headers.get(LEADER_HEADER, "")
        if status != 200:
            raise _refusal(status, headers, body, leader)
        return _decode(answer, headers, body), leader

    async def _post(
        self, base: str, method: str, request: Message, timeout: float, connect: float
    ) -> tuple[int, httpx.Headers, bytes]:
        headers = {"connect-timeout-ms": str(max(1, int(timeout * 1000)))}
        content = request.SerializeToString()
        url = f"{base}/kvgate.v1.{method}"
        try:
            # Not client.stream(), whose generator complains when the loop ends under it.
            limits = httpx.Timeout(None, connect=connect)
            asked = self._client.build_request("POST", url, content=content, headers=headers, timeout=limits)
            response = await self._client.send(asked, stream=True)
            try:
                return response.status_code, response.headers, await _read(response)
            finally:
                await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as e:
            raise Failure(f"{base}: {type(e).__name__}: {e}", not_sent=True) from e
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as e:
            raise Failure(f"{base}: {type(e).__name__}: {e}") from e
        except (ValueError, RuntimeError) as e:  # a decoder or a parser met something that is no HTTP
            raise nonsense(f"{base}: {type(e).__name__}: {e}") from e

    async def close(self) -> None:
        """Closes all connections; calls fail from then on."""
        self.closed = True
        await self._client.aclose()


def _abandon(work: asyncio.Future[Any]) -> None:
    """Ends a call whose answer nobody wants, and collects its outcome."""
    work.cancel()
    work.add_done_callback(_collect)


def _collect(work: asyncio.Future[Any]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        work.exception()


async def _read(response: httpx.Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > MAX_ANSWER:
            raise nonsense(f"answer exceeds {MAX_ANSWER} bytes")
        parts.append(part)
    return b"".join(parts)


def _decode(answer: type[M], headers: httpx.Headers, body: bytes) -> M:
    kind = headers.get("content-type", "")
    if kind.partition(";")[0].strip() != "application/proto":
        raise nonsense(f"content type is {kind[:64]!r}")
    try:
        return answer.FromString(body)
    except DecodeError as e:
        raise nonsense(f"body is no {answer.__name__}") from e


def _refusal(status: int, headers: httpx.Headers, body: bytes, leader: str) -> Failure:
    """The failure that an answer other than 200 stands for."""
    code, message = _CODE_OF_STATUS.get(status, "unknown"), f"HTTP status {status}{_hint(headers, body)}"
    details: object = None
    try:
        said = json.loads(body) if headers.get("content-type", "").startswith("application/json") else {}
    except (ValueError, RecursionError):
        said = {}
    if isinstance(said, dict):
        if isinstance(said.get("code"), str):
            code, message = said["code"], str(said.get("message") or said["code"])
        details = said.get("details")
    info = _error_info(details)
    return Failure(
        message,
        code=code,
        name=info.code,
        field=info.field,
        retry_after=max(0.0, info.retry_after.seconds + info.retry_after.nanos / 1e9),
        leader_hint=info.leader_hint or leader,
    )


def _hint(headers: httpx.Headers, body: bytes) -> str:
    """What a server that is no coordinator says besides its status: where to go, or the first line of a text."""
    said = headers.get("location", "")
    if not said and headers.get("content-type", "text/plain").startswith("text/plain"):
        said = body[:200].decode(errors="replace").strip().partition("\n")[0]
    return f": {said[:100]!r}" if said else ""


def _error_info(details: object) -> types_pb2.ErrorInfo:
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, dict) and detail.get("type") == "kvgate.v1.ErrorInfo":
            with contextlib.suppress(ValueError, DecodeError, TypeError):
                raw = str(detail.get("value", ""))
                return types_pb2.ErrorInfo.FromString(base64.b64decode(raw + "=" * (-len(raw) % 4)))
    return types_pb2.ErrorInfo()


def _keepalive() -> list[tuple[int, int, int]]:
    """Finds out within seconds that a host is gone, although nothing is sent while a ticket waits."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        option = getattr(socket, name, None)
        if option is not None:
            options.append((socket.IPPROTO_TCP, option, value))
    return options
