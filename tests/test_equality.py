"""Texts against plain decoding's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.equality import Equality, TurnKey, compare, reference, together

KEYS = st.tuples(st.just("trace"), st.sampled_from(["a", "b"]), st.integers(0, 3))
TEXTS = st.dictionaries(KEYS, st.sampled_from(["x", "y"]))


def test_only_turns_that_both_wrote_are_compared() -> None:
    first, second, third = (("t", "c", index) for index in range(3))
    found = compare({first: "x", second: "y"}, {second: "z", third: "x"})
    assert found == Equality(differing=1, compared=1)
    assert found.words() == "not bit-equal to plain decoding on 1 of 1 turns"
    assert Equality(differing=0, compared=0).share is None


@given(st.lists(TEXTS, max_size=4))
def test_the_reference_is_what_every_run_agrees_on(runs: list[dict[TurnKey, str]]) -> None:
    expected = reference(runs)
    for run in runs:
        assert compare(run, expected).differing == 0
    assert expected.keys() == {
        key for run in runs for key in run if len({other[key] for other in runs if key in other}) == 1
    }


def test_runs_together_count_their_turns() -> None:
    parts = [Equality(differing=1, compared=4), Equality(differing=0, compared=2)]
    assert together(parts) == Equality(differing=1, compared=6)
    assert together(parts).words() == "not bit-equal to plain decoding on 1 of 6 turns"
    assert together([]).words() == ""
