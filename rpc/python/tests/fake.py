"""A coordinator of a few lines, for what a real node cannot be made to do on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from google.protobuf.message import Message

# Answers a method, given its name and body, with a message or a Connect error code.
Handler = Callable[[str, bytes], "Message | str"]


@contextlib.asynccontextmanager
async def fake(handler: Handler) -> AsyncIterator[str]:
    """Serves the handler's answers; yields the URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method = head.split(" ")[1].removeprefix("/kvgate.v1.")
                length = next(
                    int(x.split(":")[1]) for x in head.split("\r\n") if x.lower().startswith("content-length")
                )
                answer = handler(method, await reader.readexactly(length))
                if isinstance(answer, str):
                    status, kind, body = "503 no", "application/json", b'{"code":"%s"}' % answer.encode()
                else:
                    status, kind, body = "200 OK", "application/proto", answer.SerializeToString()
                size = f"content-type: {kind}\r\ncontent-length: {len(body)}"
                writer.write(f"HTTP/1.1 {status}\r\n{size}\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
