"""What the gates raise. A coordinator in trouble never raises out of an admission; see `Gate`."""

from __future__ import annotations


class KvgateError(Exception):
    """Base of all errors of this package.

    `code` is the Connect code ("invalid_argument"), `name` the coordinator's machine-readable name
    ("ticket_mismatch") or "", `field` the request field at fault in the API's spelling ("ticketId")
    or "".
    """

    def __init__(self, message: str, *, code: str = "unknown", name: str = "", field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.field = field


class InvalidArgument(KvgateError, ValueError):
    """The request can never be accepted: a programming error. `field` says which argument."""

    def __init__(self, message: str, *, field: str = "", name: str = "invalid_argument") -> None:
        super().__init__(message, code="invalid_argument", name=name, field=field)


class TicketMismatch(KvgateError):
    """The ticket already waits with another reservation."""


class SessionClosing(KvgateError):
    """The session is closing or closed and takes no more tickets."""


class CallFailed(KvgateError):
    """A call other than an admission was refused, or reached no coordinator within its time.

    `retryable` says whether the same call may succeed later.
    """

    def __init__(
        self, message: str, *, code: str = "unknown", name: str = "", field: str = "", retryable: bool = False
    ) -> None:
        super().__init__(message, code=code, name=name, field=field)
        self.retryable = retryable


class LeaseGone(KvgateError):
    """The lease expired, was released or was reclaimed."""


class GateClosed(KvgateError, RuntimeError):
    """The gate was closed."""


class WrongProcess(KvgateError, RuntimeError):
    """The gate was made before a fork and used after it. Make a new gate in the child process."""


class WrongLoop(KvgateError, RuntimeError):
    """The gate was used from another event loop than the one it belongs to. Make one gate per loop."""
