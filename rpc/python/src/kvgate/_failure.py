"""One try of one call that did not succeed, and what that means for whoever made it."""

from __future__ import annotations

import enum

from .errors import CallFailed, InvalidArgument, KvgateError, SessionClosing, TicketMismatch


class Verdict(enum.Enum):
    """What a failure means for the call that got it."""

    RETRYABLE = "another try, perhaps elsewhere, may succeed"
    REFUSED = "the coordinator understood and said no"
    MISUSE = "the caller's mistake; it must hear about it"


_REFUSALS = frozenset(
    {
        "resource_exhausted",
        "unauthenticated",
        "permission_denied",
        "not_found",
        "failed_precondition",
        "out_of_range",
        "already_exists",
        "unimplemented",
    }
)
# Refusals that an operator may put right while a release waits.
_PATIENT = frozenset({"unauthenticated", "permission_denied", "resource_exhausted"})


class Failure(Exception):
    """A try that failed. Internal: callers get what `public` makes of it."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "unavailable",
        name: str = "",
        field: str = "",
        retry_after: float = 0.0,
        leader_hint: str = "",
        not_sent: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.field = field
        self.retry_after = retry_after
        self.leader_hint = leader_hint
        # The connection was never made, so nobody has seen the request.
        self.not_sent = not_sent

    def copy(self) -> Failure:
        """The same failure, to be raised by one of several who share it."""
        return Failure(
            str(self),
            code=self.code,
            name=self.name,
            field=self.field,
            retry_after=self.retry_after,
            leader_hint=self.leader_hint,
            not_sent=self.not_sent,
        )

    @property
    def verdict(self) -> Verdict:
        """Classifies the failure. A code is believed without a kvgate detail: proxies refuse without one."""
        if self.code == "invalid_argument" or self.name in ("ticket_mismatch", "session_closing"):
            return Verdict.MISUSE
        return Verdict.REFUSED if self.code in _REFUSALS else Verdict.RETRYABLE

    @property
    def worth_repeating(self) -> bool:
        """Whether a background call may go on: it can wait until a token or an overload is put right."""
        return self.verdict is Verdict.RETRYABLE or self.code in _PATIENT

    def public(self) -> KvgateError:
        """The exception for the caller."""
        text = str(self)
        if self.code == "invalid_argument":
            return InvalidArgument(text, field=self.field, name=self.name)
        if self.name == "ticket_mismatch":
            return TicketMismatch(text, code=self.code, name=self.name, field=self.field)
        if self.name == "session_closing":
            return SessionClosing(text, code=self.code, name=self.name, field=self.field)
        retryable = self.verdict is Verdict.RETRYABLE
        return CallFailed(text, code=self.code, name=self.name, field=self.field, retryable=retryable)


def nonsense(message: str) -> Failure:
    """An answer that no coordinator gives."""
    return Failure(f"answer makes no sense: {message}", code="data_loss")
