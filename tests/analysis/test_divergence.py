"""The first divergent token of two answers: by ids where known, else by characters with an estimate."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.analysis.divergence import (
    Answer,
    answer_of,
    first_divergence,
    in_words,
    place_in_words,
    read_answer,
)
from dflash_sweep.payload import answer_text
from dflash_sweep.records import Exchange


def answer(
    content: str, *, reasoning: str = "", ids: tuple[int, ...] | None = None, tokens: int | None = None
) -> Answer:
    return Answer(parts=(("reasoning", reasoning), ("content", content)), token_ids=ids, tokens=tokens)


def test_equal_answers_have_none() -> None:
    assert first_divergence(answer("abc"), answer("abc")) is None
    assert first_divergence(answer("abc", ids=(1, 2)), answer("abc", ids=(1, 2))) is None


def test_by_characters_with_the_tokens_place_estimated() -> None:
    # 20 characters in 10 tokens: 2 a token; character 13 is in token 13 · 10 / 20 = 6
    one, other = answer("return left + right;", tokens=10), answer("return left - right;")
    found = first_divergence(one, other)
    assert found is not None
    assert (found.unit, found.position, found.place, found.about_token) == ("character", 12, "content", 6)
    assert (found.expected, found.found) == ("return left + right;", "return left - right;")
    assert place_in_words(found) == "character 12 of content (about token 6)"


def test_context_is_cut_and_marked() -> None:
    found = first_divergence(answer("x" * 40 + "A" + "y" * 40), answer("x" * 40 + "B" + "y" * 40))
    assert found is not None
    assert found.expected == "…" + "x" * 16 + "A" + "y" * 15 + "…"
    assert found.about_token is None  # nobody counted the tokens


def test_by_token_ids_where_both_are_known() -> None:
    one, other = answer("a b c", ids=(5, 6, 7)), answer("a b d", ids=(5, 6, 8))
    found = first_divergence(one, other)
    assert found is not None
    assert (found.unit, found.position, found.about_token) == ("token", 2, 2)
    assert in_words(found, "plain", "this run") == 'at token 2: plain "a b c", this run "a b d"'
    by_text = first_divergence(one, answer("a b d"))
    assert by_text is not None
    assert by_text.unit == "character"  # ids of one side alone say nothing


def test_other_ids_behind_the_same_text_are_a_difference() -> None:
    found = first_divergence(answer("ab", ids=(1, 2)), answer("ab", ids=(3,)))
    assert found is not None
    assert in_words(found, "plain", "this run") == "at token 0: other token ids, the same text"


def test_an_answer_that_ends_early_diverges_where_it_ends() -> None:
    found = first_divergence(answer("one two"), answer("one"))
    assert found is not None
    assert (found.position, found.ends) == (3, "found")
    nothing = first_divergence(answer("one"), answer(""))
    assert nothing is not None
    assert in_words(nothing, "plain", "this run").endswith('plain "one", this run nothing more')


def test_reasoning_comes_first_and_is_named() -> None:
    found = first_divergence(answer("same", reasoning="hm, so", tokens=5), answer("other", reasoning="hm, no"))
    assert found is not None
    # 10 characters in 5 tokens; character 4 is in token 2
    assert (found.place, found.position, found.about_token) == ("reasoning", 4, 2)


def test_tool_calls_are_compared_by_name_and_arguments_and_ids_do_not_count() -> None:
    def call(arguments: str, call_id: str) -> Exchange:
        function = {"name": "read", "arguments": arguments}
        return Exchange(turn_index=0, send_ns=0, tool_calls=({"id": call_id, "function": function},))

    one, other = call('{"path":"a"}', "x"), call('{"path":"b"}', "y")
    assert first_divergence(answer_of(one), answer_of(call('{"path":"a"}', "z"))) is None
    found = first_divergence(answer_of(one, 12), read_answer(answer_text(other)))
    assert found is not None
    # "read" (4) and 12 of arguments in 12 tokens; character 4 + 9 is in token 13 · 12 / 16 = 9
    assert (found.place, found.position, found.about_token) == ("tool_call 1 arguments", 9, 9)
    more = first_divergence(answer_of(one), answer("", reasoning=""))
    assert more is not None
    assert (more.place, more.ends) == ("tool_call 1 name", "found")


@given(st.text(), st.text(), st.text(max_size=5))
def test_the_place_is_where_the_texts_part(shared: str, one: str, other: str) -> None:
    left, right = shared + one, shared + other
    found = first_divergence(answer(left, tokens=7), answer(right))
    if left == right:
        assert found is None
        return
    assert found is not None
    assert left[: found.position] == right[: found.position]
    assert left[found.position : found.position + 1] != right[found.position : found.position + 1]
    assert found.about_token is None or 0 <= found.about_token < 7
    json.dumps(found.as_dict())
