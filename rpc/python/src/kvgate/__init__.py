"""kvgate: admission and sessions for agentic LLM rollouts.

    async with kvgate.AsyncGate("http://127.0.0.1:7070") as gate:
        async with gate.admit(ticket="req-17:0", prompt_tokens=812, max_new_tokens=4096) as grant:
            reply = await generate(...)

`AsyncGate` is for asyncio, `Gate` for threads. `kvgate.reservation` computes how much to ask for,
`kvgate.openai` wraps an OpenAI-compatible client, `kvgate.actor` takes the place of a Ray admission actor.
"""

from .errors import (
    CallFailed,
    GateClosed,
    InvalidArgument,
    KvgateError,
    LeaseGone,
    SessionClosing,
    TicketMismatch,
    WrongLoop,
    WrongProcess,
)
from .gate import Admission, AsyncGate
from .grant import Binding, Decision, Grant
from .reservation import RequestEstimator, Reservation
from .session import Session
from .stats import Event, Stats
from .sync import Gate

__all__ = [
    "Admission",
    "AsyncGate",
    "Binding",
    "CallFailed",
    "Decision",
    "Event",
    "Gate",
    "GateClosed",
    "Grant",
    "InvalidArgument",
    "KvgateError",
    "LeaseGone",
    "RequestEstimator",
    "Reservation",
    "Session",
    "SessionClosing",
    "Stats",
    "TicketMismatch",
    "WrongLoop",
    "WrongProcess",
]
