"""How many tokens to reserve for one generate call.

A reservation is the processor-expanded prompt plus the generation limit; the pool may cap what it counts of
the limit (expected_decode_cap). Reserve what the engine will hold: too little lets the engines run out of KV
and evict, too much makes others wait.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ._options import MAX_TOKENS, check_tokens
from .errors import InvalidArgument

# What an engine generates at most when a request does not say: SGLang's own default.
DEFAULT_MAX_NEW_TOKENS = 128
# UTF-8 bytes of a token of ordinary text, until a session's usage tells better.
BYTES_PER_TOKEN = 3.0
# Tokens that a chat template puts around a message, and around a whole request.
MESSAGE_OVERHEAD = 6
REQUEST_OVERHEAD = 8
# The most parts of a request that an estimate looks at.
MOST_PARTS = 200_000


@dataclass(frozen=True)
class Reservation:
    """Tokens of one attempt. The pool charges prompt_tokens + min(max_new_tokens, expected_decode_cap)."""

    prompt_tokens: int
    max_new_tokens: int

    def __post_init__(self) -> None:
        check_tokens("prompt_tokens", self.prompt_tokens)
        check_tokens("max_new_tokens", self.max_new_tokens)

    @property
    def tokens(self) -> int:
        """The most that may be charged."""
        return self.prompt_tokens + self.max_new_tokens

    def capped(self, expected_decode_cap: int | None) -> int:
        """What a pool with this cap charges; None means no cap."""
        if expected_decode_cap is None:
            return self.tokens
        return self.prompt_tokens + min(self.max_new_tokens, check_tokens("expected_decode_cap", expected_decode_cap))

    def remaining(self, completed_tokens: int) -> Reservation:
        """The same attempt continued after completed_tokens, as partial rollout does.

        They move from the limit to the prompt; beyond the limit they only lengthen the prompt.
        """
        done = check_tokens("completed_tokens", completed_tokens)
        return Reservation(self.prompt_tokens + done, max(self.max_new_tokens - done, 0))


def from_token_ids(
    token_ids: Sized, sampling: Mapping[str, Any] | None = None, *, context_length: int | None = None
) -> Reservation:
    """A reservation for a prompt that is tokenised already.

    token_ids is one prompt: a list, an array or a one-dimensional tensor. sampling holds the sampling
    parameters as SGLang or OpenAI name them ("max_new_tokens", "max_completion_tokens" or "max_tokens").
    context_length, in tokens, bounds the limit as the engine does. Raises InvalidArgument.
    """
    shape = getattr(token_ids, "shape", None)
    if shape is not None and len(shape) != 1:
        raise InvalidArgument(
            f"token_ids has {len(shape)} dimensions, allowed is one: one reservation for each prompt", field="tokenIds"
        )
    if isinstance(token_ids, (str, bytes)):
        raise InvalidArgument("token_ids is text, allowed are token ids: tokenise it first", field="tokenIds")
    return from_prompt_length(len(token_ids), sampling, context_length=context_length)


def from_prompt_length(
    prompt_tokens: int, sampling: Mapping[str, Any] | None = None, *, context_length: int | None = None
) -> Reservation:
    """A reservation from the length of the prompt in tokens and the sampling parameters.

    With "n" > 1 in sampling each completion holds KV of its own, while the prompt is shared.
    """
    prompt = check_tokens("prompt_tokens", prompt_tokens)
    params = sampling or {}
    limit = max_new_tokens(params)
    if context_length is not None:
        room = max(check_tokens("context_length", context_length) - prompt, 0)
        limit = room if limit is None else min(limit, room)
    elif limit is None:
        limit = DEFAULT_MAX_NEW_TOKENS
    return Reservation(prompt, limit * check_tokens("n", params.get("n") or 1, minimum=1))


def from_multimodal(
    text_tokens: int,
    item_tokens: Iterable[int],
    sampling: Mapping[str, Any] | None = None,
    *,
    placeholder_tokens: int = 1,
    context_length: int | None = None,
) -> Reservation:
    """A reservation for a multimodal prompt from what its processor expands each item to.

    text_tokens counts the tokenised text with its placeholders, placeholder_tokens of them for each item
    (0 when the text has none); item_tokens are the expanded lengths of the images, videos and sounds. When
    the processor gives the expanded ids, from_token_ids on those is the same and simpler.
    """
    items = [check_tokens("item_tokens", n) for n in item_tokens]
    replaced = len(items) * check_tokens("placeholder_tokens", placeholder_tokens)
    text = check_tokens("text_tokens", text_tokens)
    if replaced > text:
        raise InvalidArgument(
            f"text_tokens is {text}, allowed is {replaced} or more: "
            f"{len(items)} items with {placeholder_tokens} placeholder tokens each",
            field="textTokens",
        )
    return from_prompt_length(text - replaced + sum(items), sampling, context_length=context_length)


def max_new_tokens(sampling: Mapping[str, Any]) -> int | None:
    """The generation limit that sampling parameters hold, under whichever name; None when they hold none."""
    for name in ("max_new_tokens", "max_completion_tokens", "max_tokens"):
        value = sampling.get(name)
        # The OpenAI client leaves out what is "not given" by placeholders, which are none of these.
        if hasattr(value, "__index__") or isinstance(value, (float, str, Decimal)):
            return check_tokens(name, int(value) if isinstance(value, float) and value.is_integer() else value)
    return None


class RequestEstimator:
    """Estimates reservations for OpenAI-style requests, whose prompts are text, and learns from usage.

    Within a session the prompt of a turn is mostly that of the turn before and its answer, so the estimate
    is what the engine reported last plus what the request has grown by since, at the session's own rate of
    bytes to tokens. Safe for use from several threads. It remembers the `sessions` used last.
    """

    def __init__(self, *, sessions: int = 10_000, item_tokens: int = 1024, context_length: int | None = None) -> None:
        """item_tokens is what an image, video or sound counts before usage is known."""
        self._sessions: OrderedDict[str, _Seen] = OrderedDict()
        self._most = check_tokens("sessions", sessions, minimum=1)
        self._item_tokens = check_tokens("item_tokens", item_tokens)
        self._context_length = context_length
        self._lock = threading.Lock()
        # What sessions that are new are taken to have: the mean of those seen.
        self._rate = BYTES_PER_TOKEN

    def estimate(self, request: Mapping[str, Any], session: str = "") -> Reservation:
        """A reservation for one request: messages or prompt, tools, and the generation limit."""
        size = _measure(request)
        with self._lock:
            seen = self._sessions.get(session) if session else None
            if seen is not None:
                self._sessions.move_to_end(session)
            prompt = self._prompt(size, seen)
        if self._context_length is not None:
            prompt = min(prompt, self._context_length)
        return from_prompt_length(min(prompt, MAX_TOKENS), request, context_length=self._context_length)

    def learn(self, request: Mapping[str, Any], prompt_tokens: int, session: str = "") -> None:
        """Notes what the engine counted for a request's prompt."""
        tokens = check_tokens("prompt_tokens", prompt_tokens)
        size = _measure(request)
        text = tokens - size.fixed - size.items * self._item_tokens
        if tokens == 0 or size.bytes == 0:
            return
        with self._lock:
            if size.items == 0 and text > 0:
                rate = min(max(size.bytes / text, 0.25), 16.0)
                self._rate += 0.1 * (rate - self._rate)
            if not session:
                return
            self._sessions[session] = _Seen(size, tokens)
            self._sessions.move_to_end(session)
            while len(self._sessions) > self._most:
                self._sessions.popitem(last=False)

    def forget(self, session: str) -> None:
        """Drops what was learnt of a session that is over."""
        with self._lock:
            self._sessions.pop(session, None)

    def _prompt(self, size: _Size, seen: _Seen | None) -> int:
        if seen is None or size.bytes < seen.size.bytes or size.items < seen.size.items:
            return math.ceil(size.bytes / self._rate) + size.fixed + size.items * self._item_tokens
        grown = math.ceil((size.bytes - seen.size.bytes) / self._rate)
        fixed = max(size.fixed - seen.size.fixed, 0)
        return seen.tokens + grown + fixed + (size.items - seen.size.items) * self._item_tokens


@dataclass(frozen=True)
class _Size:
    # UTF-8 bytes of text, tokens of the template, items that are no text.
    bytes: int
    fixed: int
    items: int


@dataclass(frozen=True)
class _Seen:
    size: _Size
    tokens: int


def _measure(request: Mapping[str, Any]) -> _Size:
    """The size of an OpenAI-style request without a tokenizer."""
    messages = request.get("messages")
    parts: list[object] = [request.get("prompt"), request.get("tools")]
    fixed = REQUEST_OVERHEAD
    if isinstance(messages, Iterable) and not isinstance(messages, (str, bytes, Mapping)):
        listed = list(messages)
        parts.extend(listed)
        fixed += MESSAGE_OVERHEAD * len(listed)
    size, items, ids, seen = 0, 0, 0, 0
    # Bounded, because what contains itself has no end; whoever sends it hears so from the client's JSON.
    while parts and seen < MOST_PARTS:
        part = parts.pop()
        seen += 1
        if isinstance(part, str):
            size += len(part.encode("utf-8", "surrogatepass"))
        elif isinstance(part, Mapping):
            kind = part.get("type")
            if isinstance(kind, str) and kind in _ITEMS:
                items += 1
            else:
                parts.extend(value for key, value in part.items() if key != "role")
        elif hasattr(part, "model_dump"):
            parts.append(part.model_dump(exclude_none=True))
        elif isinstance(part, Sequence) and not isinstance(part, (bytes, bytearray)):
            if part and all(isinstance(x, int) for x in part):
                ids += len(part)  # a prompt of token ids
            else:
                parts.extend(part)
    return _Size(size, fixed + ids, items)


_ITEMS = frozenset({"image_url", "image", "video_url", "video", "audio_url", "input_audio", "audio"})
