"""Turns the arguments of an admission into its message, checked before anything is sent."""

from __future__ import annotations

from typing import Literal, TypedDict

from ._options import check_choice, check_flag, check_id, check_seconds, check_tokens, shown
from .errors import InvalidArgument
from .reservation import Reservation
from .v1 import admission_pb2 as pb
from .v1 import types_pb2

Mode = Literal["train", "eval"]
_MODES = {"train": types_pb2.MODE_TRAIN, "eval": types_pb2.MODE_EVAL}


class AdmitArgs(TypedDict, total=False):
    """The arguments of `admit`; see `AsyncGate.admit`."""

    ticket: str
    prompt_tokens: int
    max_new_tokens: int
    reservation_tokens: int | None
    reservation: Reservation | None
    session: str
    group: str
    mode: Mode
    protected: bool
    priority: int
    rid: str
    max_wait: float | None
    ttl: float | None
    pool: str | None


def acquire_message(
    holder: str | None,
    *,
    pool: str,
    ticket: str,
    prompt_tokens: int,
    max_new_tokens: int,
    reservation_tokens: int | None,
    reservation: Reservation | None,
    session: str,
    group: str,
    mode: str,
    protected: bool,
    priority: int,
    rid: str,
    max_wait: float | None,
    ttl: float | None,
) -> pb.AcquireRequest:
    """Raises InvalidArgument with the field that is wrong."""
    if reservation is not None:
        if not isinstance(reservation, Reservation):
            raise InvalidArgument(
                f"reservation is {shown(reservation)}, allowed is a Reservation; for a number of tokens there is "
                "reservation_tokens",
                field="reservation",
            )
        if prompt_tokens or max_new_tokens or reservation_tokens is not None:
            raise InvalidArgument(
                "reservation excludes prompt_tokens, max_new_tokens and reservation_tokens", field="reservation"
            )
        prompt_tokens, max_new_tokens = reservation.prompt_tokens, reservation.max_new_tokens
    if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
        raise InvalidArgument(f"priority is {shown(priority)}, allowed is a 32-bit integer", field="priority")
    msg = pb.AcquireRequest(
        pool=check_id("pool", pool, required=True),
        ticket_id=check_id("ticket_id", ticket, required=True),
        prompt_tokens=check_tokens("prompt_tokens", prompt_tokens),
        max_new_tokens=check_tokens("max_new_tokens", max_new_tokens),
        mode=check_choice("mode", mode, _MODES),
        protected=check_flag("protected", protected),
        priority=priority,
        session_id=check_id("session_id", session),
        group_id=check_id("group_id", group),
        holder_id=holder or "",
        rid=check_id("rid", rid),
    )
    _set_reservation(msg, reservation_tokens)
    if max_wait is not None:
        msg.max_wait.FromNanoseconds(int(check_seconds("max_wait", max_wait, longest=86_400) * 1e9))
    if ttl is not None:
        msg.ttl.FromNanoseconds(int(check_seconds("ttl", ttl, positive=True) * 1e9))
    return msg


def _set_reservation(msg: pb.AcquireRequest, tokens: int | None) -> None:
    counted = msg.prompt_tokens or msg.max_new_tokens
    if tokens is None:
        if not counted and not msg.protected:
            raise InvalidArgument(
                "reservation_tokens: it or prompt_tokens + max_new_tokens must be above 0", field="reservationTokens"
            )
        return
    if counted:
        raise InvalidArgument(
            "reservation_tokens excludes prompt_tokens and max_new_tokens: send one or the other",
            field="reservationTokens",
        )
    msg.reservation_tokens = check_tokens("reservation_tokens", tokens, minimum=1)
