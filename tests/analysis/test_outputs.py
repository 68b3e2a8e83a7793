"""Texts, settings in force, and what may be ranked together."""

from __future__ import annotations

from dflash_sweep.analysis.applied import setting_not_applied
from dflash_sweep.analysis.comparability import comparability
from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.outputs import correctness, degenerate_output
from dflash_sweep.records import VerdictStatus
from fakes.trial_tables import no_turns, study, table, trial, turn, turns

ROWS = [
    trial(0, speculative=False),
    trial(1, speculative=False),
    trial(2, knobs={"budget": 8}),
    trial(3, knobs={"budget": 9}),
]


def texts(*hashes: tuple[str, str]) -> object:
    """(uid, text hash) for turn 0."""
    return turns([turn(uid, text_sha256=text, speculative=uid in ("s/2", "s/3")) for uid, text in hashes])


def test_equal_texts_hold() -> None:
    counted = texts(("s/0", "a"), ("s/1", "a"), ("s/2", "a"), ("s/3", "a"))
    (verdict,) = correctness(gather(table(ROWS), counted, study()))  # type: ignore[arg-type]
    assert verdict.status is VerdictStatus.HOLDS
    assert verdict.value == 1.0


def test_differing_texts_are_named() -> None:
    counted = texts(("s/0", "a"), ("s/1", "a"), ("s/2", "a"), ("s/3", "b"))
    (verdict,) = correctness(gather(table(ROWS), counted, study()))  # type: ignore[arg-type]
    assert verdict.status is VerdictStatus.DOES_NOT_HOLD
    assert verdict.details["differing"] == ["trial 3"]
    (first,) = verdict.details["first_divergence"]
    assert (first["uid"], first["turn"], first["unit"]) == ("s/3", "c/0", None)  # rows with hashes alone
    assert "ranked apart" in verdict.statement


def test_the_first_divergent_token_is_named_with_the_text_around_it() -> None:
    def row(uid: str, text: str, *, speculative: bool, **fields: object) -> dict[str, object]:
        answer = f'["","{text}",[]]'
        return turn(uid, text_sha256=text, text=answer, output_tokens=6, speculative=speculative, **fields)

    counted = turns(
        [
            row("s/0", "one two", speculative=False),
            row("s/1", "one two", speculative=False),
            row("s/2", "one two", speculative=True),
            row("s/3", "one too", speculative=True),
        ]
    )
    (verdict,) = correctness(gather(table(ROWS), counted, study()))
    # 7 characters in 6 tokens; character 5 is in token 5 · 6 / 7 = 4
    place = "First in trial 3, turn c/0, at character 5 of content (about token 4): "
    assert verdict.statement.endswith(place + 'plain "one two", this run "one too".')
    (first,) = verdict.details["first_divergence"]
    assert (first["unit"], first["position"], first["about_token"], first["run"]) == ("character", 5, 4, "trial 3")


def test_by_token_ids_where_the_server_gave_them() -> None:
    rows = [
        turn(uid, text_sha256=text, text=f'["","{text}",[]]', token_ids=ids, speculative=uid in ("s/2", "s/3"))
        for uid, text, ids in (("s/0", "ab", (1, 2)), ("s/2", "ab", (1, 2)), ("s/3", "ac", (1, 9)))
    ]
    (verdict,) = correctness(gather(table(ROWS), turns(rows), study()))
    assert "turn c/0, at token 1: plain" in verdict.statement


def test_plain_decoding_that_does_not_repeat_proves_nothing() -> None:
    counted = texts(("s/0", "a"), ("s/1", "b"), ("s/2", "c"), ("s/3", "c"))
    (verdict,) = correctness(gather(table(ROWS), counted, study()))  # type: ignore[arg-type]
    assert verdict.status is VerdictStatus.NOT_ENOUGH_DATA


def test_repetition_is_reported() -> None:
    rows = [*ROWS, trial(4, tps=None, knobs={"budget": 99}, failure_kind="degenerate_output")]
    (verdict,) = degenerate_output(gather(table(rows), no_turns(), study()))
    assert verdict.status is VerdictStatus.HOLDS
    assert verdict.details["rows"] == ["trial 4"]
    (clean,) = degenerate_output(gather(table(ROWS), texts(("s/2", "a")), study()))  # type: ignore[arg-type]
    assert clean.status is VerdictStatus.DOES_NOT_HOLD


def test_a_setting_that_is_not_in_force_is_reported() -> None:
    rows = [trial(i, knobs={"top_k": 8, "budget": 16}) for i in range(3)]
    frame = table(rows)
    frame["effective.top_k"] = [8, 8.0, 4]
    (verdict,) = setting_not_applied(gather(frame, no_turns(), study()))
    assert verdict.status is VerdictStatus.HOLDS
    assert "trial 2 asked for top_k=8, the server shows 4" in verdict.statement
    assert verdict.details["never_shown"] == ["budget"]


def test_settings_in_force_and_settings_nobody_shows() -> None:
    frame = table([trial(i, knobs={"chain_seed": True}) for i in range(3)])
    (unseen,) = setting_not_applied(gather(frame, no_turns(), study()))
    assert unseen.status is VerdictStatus.NOT_ENOUGH_DATA
    frame["effective.chain_seed"] = [True, True, None]
    (shown,) = setting_not_applied(gather(frame, no_turns(), study()))
    assert shown.status is VerdictStatus.DOES_NOT_HOLD
    assert shown.n == 2


def test_rows_on_other_terms_are_kept_apart() -> None:
    assert comparability(gather(table(ROWS), no_turns(), study()))[0].status is VerdictStatus.HOLDS
    rows = [*ROWS, trial(4, knobs={"budget": 8}, comparability_key="other", label="run 4")]
    (verdict,) = comparability(gather(table(rows), no_turns(), study()))
    assert verdict.status is VerdictStatus.DOES_NOT_HOLD
    assert verdict.details["kept_apart"] == ["run 4"]


def test_a_cache_that_was_warm_for_some_is_a_difference() -> None:
    counted = turns([turn(f"s/{i}", cached_tokens=c) for i, c in ((2, 0), (3, 900))])
    (verdict,) = comparability(gather(table(ROWS), counted, study()))
    assert verdict.status is VerdictStatus.DOES_NOT_HOLD
    assert "cached in some runs and not in others" in verdict.statement
