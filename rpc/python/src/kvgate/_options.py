"""How a gate works: its settings, checked."""

from __future__ import annotations

import numbers
import os
import re
import socket
import ssl
import unicodedata
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from .errors import InvalidArgument
from .stats import Event

T = TypeVar("T")

MAX_TOKENS = 1_000_000_000_000
_CAMEL = re.compile(r"_([a-z])")


def new_holder_id() -> str:
    """A name for this process: host, process id and a random part."""
    host = socket.gethostname()[:128] or "unknown"
    return f"{host}-{os.getpid()}-{uuid.uuid4()}"


@dataclass(frozen=True)
class Options:
    """See `AsyncGate` for what each means. Times are seconds."""

    pool: str = "default"
    holder_id: str | None = field(default_factory=new_holder_id)
    token: str | None = None
    verify: ssl.SSLContext | bool = True
    decision_budget: float = 3.0
    default_max_wait: float = 30.0
    default_ttl: float = 600.0
    attempt_timeout: float = 3.0
    call_budget: float = 10.0
    retry_first: float = 0.05
    retry_longest: float = 1.0
    auto_renew: bool = True
    multiplex: bool = True
    on_event: Callable[[Event], None] | None = None

    def __post_init__(self) -> None:
        check_id("pool", self.pool, required=True)
        if self.holder_id is not None:
            check_id("holder_id", self.holder_id, required=True)
        for name in (
            "decision_budget",
            "default_ttl",
            "attempt_timeout",
            "call_budget",
            "retry_first",
            "retry_longest",
        ):
            check_seconds(name, getattr(self, name), positive=True)
        check_seconds("default_max_wait", self.default_max_wait)
        for name in ("auto_renew", "multiplex"):
            check_flag(name, getattr(self, name))
        _check_token(self.token)
        if not isinstance(self.verify, (bool, ssl.SSLContext)):
            raise InvalidArgument(
                f"verify is {shown(self.verify)}, allowed is True, False or an ssl.SSLContext, such as "
                "ssl.create_default_context(cafile=...)",
                field="verify",
            )
        if self.on_event is not None and not callable(self.on_event):
            raise InvalidArgument(f"on_event is {shown(self.on_event)}, allowed is a function", field="onEvent")
        if self.retry_longest < self.retry_first:
            raise InvalidArgument(
                f"retry_longest is {self.retry_longest}, allowed is {self.retry_first} or more", field="retryLongest"
            )


def api_name(name: str) -> str:
    """The API's spelling of an argument: "ticket_id" is "ticketId"."""
    return _CAMEL.sub(lambda m: m.group(1).upper(), name)


def shown(value: object) -> str:
    """A value for an error message: short, and whatever it is."""
    try:
        return repr(value)[:80]
    except Exception:  # such as an integer of 5,000 digits
        return f"a value of type {type(value).__name__}"


def _check_token(token: object) -> None:
    """A token is never shown. One with a line end has been read from a file as it is."""
    if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable()):
        raise InvalidArgument(
            "token cannot go into a header, allowed is printable ASCII text without line ends", field="token"
        )
    if isinstance(token, str) and token != token.strip():
        raise InvalidArgument("token begins or ends with a space, allowed is none around it", field="token")


def check_id(name: str, value: object, *, required: bool = False) -> str:
    """Returns an id that the coordinator accepts, or raises InvalidArgument."""
    allowed = f"{1 if required else 0} to 256 bytes of printable text"
    if isinstance(value, str):
        printable = not any(unicodedata.category(c).startswith("C") for c in value)
        if printable and (1 if required else 0) <= len(value.encode()) <= 256:
            return value
    raise InvalidArgument(f"{name} is {shown(value)}, allowed is {allowed}", field=api_name(name))


def check_tokens(name: str, value: object, *, minimum: int = 0) -> int:
    """Returns a number of tokens in range, or raises InvalidArgument."""
    try:
        # Accepts what numpy and torch call an integer, and no float or bool.
        tokens = value.__index__() if not isinstance(value, bool) else -1  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, RuntimeError):  # an array of several, for one
        tokens = -1
    if not minimum <= tokens <= MAX_TOKENS:
        raise InvalidArgument(
            f"{name} is {shown(value)}, allowed is an integer from {minimum} to {MAX_TOKENS}", field=api_name(name)
        )
    return int(tokens)


def check_seconds(name: str, value: object, *, positive: bool = False, longest: float = 31_536_000.0) -> float:
    """Returns a duration in seconds in range, or raises InvalidArgument."""
    ok = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not ok or not 0 <= value <= longest or (positive and value == 0):  # type: ignore[operator]
        least = "above 0" if positive else "0 or more"
        raise InvalidArgument(
            f"{name} is {shown(value)}, allowed is a number of seconds, {least}, at most {longest:.0f}",
            field=api_name(name),
        )
    return float(value)  # type: ignore[arg-type]


def check_flag(name: str, value: object) -> bool:
    """Returns a bool, or raises InvalidArgument: "no" is true, and nobody means that."""
    if isinstance(value, bool):
        return value
    raise InvalidArgument(f"{name} is {shown(value)}, allowed is True or False", field=api_name(name))


def check_text(name: str, value: object, *, longest: int, required: bool = False) -> str:
    """Returns free text of at most longest bytes of UTF-8, or raises InvalidArgument."""
    least = 1 if required else 0
    if isinstance(value, str):
        size = len(value.encode(errors="surrogatepass"))
        sound = not any("\ud800" <= c <= "\udfff" for c in value)
        if sound and least <= size <= longest:
            return value
    raise InvalidArgument(
        f"{name} is {shown(value)}, allowed is text of {least} to {longest} bytes", field=api_name(name)
    )


def check_choice(name: str, value: object, choices: Mapping[str, T]) -> T:
    """Returns what one of the named choices stands for, or raises InvalidArgument."""
    if isinstance(value, str) and value in choices:
        return choices[value]
    raise InvalidArgument(
        f"{name} is {shown(value)}, allowed is one of {', '.join(map(repr, choices))}", field=api_name(name)
    )
