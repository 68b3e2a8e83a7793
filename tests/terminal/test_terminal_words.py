"""Words that fit a line: whole pieces, whole numbers, never wider than asked."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Failure, Role
from dflash_sweep.terminal import words
from dflash_sweep.watcher import Best
from fakes.builders import make_result
from fakes.scenes import make_scene, spec, trial

PIECES = st.lists(
    st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=20), max_size=8
)


@given(PIECES, st.integers(1, 100))
def test_a_line_fits_and_holds_leading_pieces_whole(pieces: list[str], width: int) -> None:
    line = words.fit(pieces, width)
    assert cell_len(line) <= width
    kept = line.split("  ") if line else []
    if kept and kept[-1] == words.MORE and kept != pieces[: len(kept)]:
        kept.pop()
    assert kept == pieces[: len(kept)]


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), max_size=120), st.integers(2, 100))
def test_a_cut_text_ends_between_words(text: str, width: int) -> None:
    line = words.cut(text, width)
    assert cell_len(line) <= width
    whole = " ".join(text.split())
    if line != whole:
        assert line.endswith(words.MORE)
        rest = line.removesuffix(words.MORE).rstrip()
        assert whole.startswith(rest)
        assert whole[len(rest) : len(rest) + 1] in (" ", "") or not rest


def test_a_trial_says_who_how_fast_and_with_what() -> None:
    pieces = words.trial_pieces(trial(3), 25.0, make_scene())
    assert pieces[:3] == ["candidate 3: 25.00 tok/s", "target_feat_ctx=128", "budget=22"]
    assert pieces[-1] == "cache_type_v=q4_0"


def test_a_failed_trial_says_why() -> None:
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="no room for\nthe draft's cache")
    failed = trial(3, result=make_result("u", turns=(), failure=failure))
    assert words.trial_pieces(failed, None, make_scene()) == [
        "candidate 3: out_of_memory — no room for the draft's cache"
    ]


@pytest.mark.parametrize("role", list(Role))
def test_every_role_has_words(role: Role) -> None:
    assert words.who(role, None, speculative=True)


def test_confirm_runs_do_not_repeat_their_knobs() -> None:
    assert words.spec_pieces(spec(3, role=Role.CONFIRM), make_scene()) == ["confirm candidate 3"]


def test_the_best_is_shown_with_its_interval_against_plain_decoding() -> None:
    best = Best(candidate=7, value=60.0, unit="tok/s", low=58.0, high=62.0, plain=50.0, gain=1.2, gain_low=1.15,
                gain_high=1.25)  # fmt: skip
    assert words.best_pieces(best) == [
        "#7: 60.00 tok/s [58.00, 62.00]", "1.20× [1.15, 1.25] of plain 50.00"
    ]  # fmt: skip
    alone = Best(candidate=7, value=60.0, unit="tok/s")
    assert words.best_pieces(alone) == ["#7: 60.00 tok/s"]
    assert words.best_pieces(None) == ["no candidate yet"]


@pytest.mark.parametrize(
    ("seconds", "clock", "about"),
    [(0, "0:00", "0 s"), (42.9, "0:42", "43 s"), (725, "12:05", "12 min"), (3723, "1:02:03", "62 min"),
     (36000, "10:00:00", "10.0 h")],
)  # fmt: skip
def test_times(seconds: float, clock: str, about: str) -> None:
    assert (words.clock(seconds), words.about(seconds)) == (clock, about)


def test_the_first_sentence_ends_at_no_point_inside_a_number() -> None:
    text = "exact_ms costs 22.05 ms [21.81, 22.29]. No acceptance length makes up for it."
    assert words.first_sentence(text) == "exact_ms costs 22.05 ms [21.81, 22.29]."
    assert re.match("one", words.first_sentence("one sentence")) is not None
