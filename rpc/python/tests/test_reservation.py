"""Reservations: laws that hold for whatever a rollout may ask."""

from __future__ import annotations

from array import array
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate import InvalidArgument, RequestEstimator, Reservation
from kvgate import reservation as r

tokens = st.integers(0, 10_000_000)
limits = st.integers(0, 1_000_000)
names = st.sampled_from(["max_new_tokens", "max_completion_tokens", "max_tokens"])
texts = st.text(max_size=300)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": texts}),
    max_size=8,
)
# Anything JSON may hold: a request that makes no sense is refused by the engine, not by the estimate.
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(tokens, limits, names)
def test_prompt_plus_limit_under_any_name(prompt: int, limit: int, name: str) -> None:
    assert r.from_prompt_length(prompt, {name: limit}) == Reservation(prompt, limit)


@given(st.lists(st.integers(0, 200_000), max_size=200), limits)
def test_token_ids_count_alike_in_every_container(ids: list[int], limit: int) -> None:
    expected = Reservation(len(ids), limit)
    for container in (ids, tuple(ids), array("l", ids)):
        assert r.from_token_ids(container, {"max_new_tokens": limit}) == expected


@given(tokens, limits, tokens)
def test_context_length_bounds_the_whole(prompt: int, limit: int, context: int) -> None:
    got = r.from_prompt_length(prompt, {"max_new_tokens": limit}, context_length=context)
    assert got.prompt_tokens == prompt
    assert got.max_new_tokens <= limit
    assert got.tokens <= max(context, prompt)
    assert got.max_new_tokens == min(limit, max(context - prompt, 0))


@given(tokens, st.integers(1, 64), limits)
def test_n_completions_share_the_prompt(prompt: int, n: int, limit: int) -> None:
    assert r.from_prompt_length(prompt, {"max_tokens": limit, "n": n}).tokens == prompt + n * limit


@given(tokens, limits, tokens)
def test_the_cap_tightens_only_the_decode(prompt: int, limit: int, cap: int) -> None:
    whole = Reservation(prompt, limit)
    assert prompt <= whole.capped(cap) <= whole.tokens == whole.capped(None)
    assert whole.capped(cap) == prompt + min(limit, cap)


@given(tokens, limits, limits)
def test_what_remains_never_reserves_less_than_what_is_held(prompt: int, limit: int, done: int) -> None:
    rest = Reservation(prompt, limit).remaining(done)
    assert rest.prompt_tokens == prompt + done
    assert rest.tokens == max(prompt + limit, prompt + done)


@given(st.lists(tokens, max_size=10), tokens, st.integers(0, 3), limits)
def test_multimodal_items_replace_their_placeholders(items: list[int], text: int, holes: int, limit: int) -> None:
    with_holes = text + holes * len(items)
    got = r.from_multimodal(with_holes, items, {"max_tokens": limit}, placeholder_tokens=holes)
    assert got == Reservation(text + sum(items), limit)


@given(messages, limits)
def test_an_estimate_is_never_below_the_generation_limit(sent: list[dict[str, str]], limit: int) -> None:
    got = RequestEstimator().estimate({"messages": sent, "max_tokens": limit})
    assert got.max_new_tokens == limit
    assert got.prompt_tokens > 0


@given(messages, messages)
def test_a_longer_request_never_reserves_less(first: list[dict[str, str]], more: list[dict[str, str]]) -> None:
    for taught in (False, True):
        estimator = RequestEstimator()
        if taught:
            estimator.learn({"messages": first}, 100, "s")
        less = estimator.estimate({"messages": first}, "s")
        assert estimator.estimate({"messages": first + more}, "s").tokens >= less.tokens


@given(messages.filter(bool), st.integers(1, 1_000_000), messages)
def test_usage_of_a_session_is_believed(sent: list[dict[str, str]], used: int, other: list[dict[str, str]]) -> None:
    estimator = RequestEstimator()
    estimator.learn({"messages": sent}, used, "s")
    seen = estimator.estimate({"messages": sent}, "s").prompt_tokens
    # A request without any text teaches nothing.
    if any(m["content"] for m in sent):
        assert seen == used
    estimator.forget("s")
    assert estimator.estimate({"messages": other}, "s") == estimator.estimate({"messages": other}, "t")


@given(st.dictionaries(st.sampled_from(["messages", "prompt", "tools"]), anything))
def test_any_request_gets_an_estimate(request: dict[str, Any]) -> None:
    got = RequestEstimator().estimate(request)
    assert got.prompt_tokens >= 0
    assert got.max_new_tokens == r.DEFAULT_MAX_NEW_TOKENS


@given(st.lists(st.text(max_size=5), min_size=1, max_size=50))
def test_the_estimator_forgets_the_sessions_used_longest_ago(ids: list[str]) -> None:
    estimator = RequestEstimator(sessions=3)
    for session in ids:
        estimator.learn({"prompt": "x" * 30}, 7, session)
    assert len(estimator._sessions) <= 3


def test_the_rate_of_bytes_is_learnt_for_new_sessions() -> None:
    estimator = RequestEstimator()
    request = {"messages": [{"role": "user", "content": "词" * 1000}]}
    before = estimator.estimate(request, "new").prompt_tokens
    for n in range(200):
        estimator.learn(request, 2000, f"s{n}")
    after = estimator.estimate(request, "new").prompt_tokens
    assert abs(after - 2000) < abs(before - 2000)
    assert abs(after - 2000) < 100


def test_images_count_what_they_are_said_to() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    text = {"type": "text", "text": "what is this"}
    got = RequestEstimator(item_tokens=500).estimate({"messages": [{"role": "user", "content": [text, image]}]})
    assert 500 < got.prompt_tokens < 540


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: r.from_prompt_length(-1), "promptTokens"),
        (lambda: r.from_prompt_length(1, {"max_tokens": -1}), "maxTokens"),
        (lambda: r.from_prompt_length(1, {"n": -2}), "n"),
        (lambda: r.from_token_ids("hello"), "tokenIds"),
        (lambda: r.from_multimodal(1, [5, 5]), "textTokens"),
        (lambda: r.from_multimodal(9, [-5]), "itemTokens"),
        (lambda: Reservation(1, 2).remaining(-1), "completedTokens"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        call()
    assert raised.value.field == field


@pytest.mark.parametrize("limit", [1.5, "4096", float("nan"), True, Decimal(7), -1])
def test_a_limit_that_is_no_integer_is_not_ignored(limit: object) -> None:
    with pytest.raises(InvalidArgument) as raised:
        r.from_prompt_length(5, {"max_tokens": limit})
    assert raised.value.field == "maxTokens"


def test_a_limit_read_from_json_as_a_float_counts() -> None:
    assert r.from_prompt_length(5, {"max_tokens": 4096.0}).max_new_tokens == 4096


def test_a_request_that_contains_itself_is_estimated_too() -> None:
    message: dict[str, Any] = {"role": "user", "content": "x"}
    message["again"] = [message, message]
    assert RequestEstimator().estimate({"messages": [message], "max_tokens": 7}).max_new_tokens == 7
