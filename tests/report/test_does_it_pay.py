"""Finished studies on one page: which settings are shown, what they need, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_sweep.errors import ConfigError
from dflash_sweep.report import does_it_pay

PLAIN_KNOBS = {"target_precision": "as_shipped", "threads": 1}


def setting(tps: float, *, n: int = 3, speculative: bool = True, **more: Any) -> dict[str, Any]:
    entry = {
        "decode_tps": tps, "n": n, "speculative": speculative, "knobs": dict(PLAIN_KNOBS), "acceptance_length": None,
        "step_ms": None, "speedup": {"value": None, "ci_low": None, "ci_high": None}, "ci_low": None, "ci_high": None,
        "confirmed": False,
    }  # fmt: skip
    return entry | more


def document(study: str, *settings: dict[str, Any], measurement: str = "measured") -> dict[str, Any]:
    return {
        "study": study, "measurement": measurement, "settings": list(settings),
        "provenance": {"engine": "llamacpp", "build": "b1", "device": "CPU", "trace": "workloads"},
    }  # fmt: skip


def dflash(tps: float, **more: Any) -> dict[str, Any]:
    return setting(tps, **{"knobs": {**PLAIN_KNOBS, "spec_type": "draft-dflash", "spec_draft_n_max": 3}} | more)


def ngram(tps: float, **more: Any) -> dict[str, Any]:
    return setting(tps, **{"knobs": {**PLAIN_KNOBS, "spec_type": "ngram-map-k", "ngram_size_n": None}} | more)


PLAIN = setting(100.0, speculative=False, n=5, ci_low=95.0, ci_high=105.0)


def test_the_best_of_each_kind_is_shown() -> None:
    found = does_it_pay.rows(document("s", PLAIN, dflash(70.0), dflash(80.0), ngram(90.0), ngram(60.0)))
    assert [(row.kind, row.tps) for row in found] == [("dflash", 80.0), ("ngram", 90.0)]
    assert found[0].setting == "spec_draft_n_max=3 spec_type=draft-dflash"  # what plain decoding has too is left out
    assert (found[0].plain_tps, found[0].plain_n, found[0].plain_interval) == (100.0, 5, (95.0, 105.0))


def test_a_confirmed_setting_goes_before_a_lucky_single_run() -> None:
    (row,) = does_it_pay.rows(document("s", PLAIN, dflash(99.0, n=1), dflash(80.0, confirmed=True)))
    assert row.tps == 80.0


def test_needed_length() -> None:
    # 25 ms a step against 1000 / 100 = 10 ms a token: 2.5 tokens pay for it.
    (row,) = does_it_pay.rows(document("s", PLAIN, dflash(80.0, step_ms=25.0, acceptance_length=2.0)))
    assert row.needed == pytest.approx(2.5)
    # AL 2.0 at 0.8 times plain decoding: 2.0 / 0.8 = 2.5, whatever the mean step says.
    ratio = {"value": 0.8, "ci_low": 0.7, "ci_high": 0.9}
    (row,) = does_it_pay.rows(document("s", PLAIN, dflash(80.0, step_ms=26.0, acceptance_length=2.0, speedup=ratio)))
    assert row.needed == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(1.01, 1.2, "speculation wins"), (0.7, 0.99, "plain decoding wins"), (0.9, 1.1, "undecided"),
     (None, None, "undecided: too few runs")],
)  # fmt: skip
def test_verdicts_follow_the_interval(low: float | None, high: float | None, words: str) -> None:
    ratio = {"value": 1.3, "ci_low": low, "ci_high": high}
    (row,) = does_it_pay.rows(document("s", PLAIN, dflash(130.0, speedup=ratio)))
    assert row.verdict == words


def test_a_gain_over_plain_decoding_with_other_settings_is_no_win_of_speculations() -> None:
    ratio = {"value": 1.3, "ci_low": 1.2, "ci_high": 1.4}
    faster = dflash(130.0, speedup=ratio, plain_unlike=True, acceptance_length=1.0, step_ms=7.7)
    faster["knobs"] = faster["knobs"] | {"threads": 2}
    found = document("s", PLAIN, faster)
    (row,) = does_it_pay.rows(found)
    assert row.verdict == "undecided: plain decoding ran with other settings"
    page = does_it_pay.markdown([found])
    assert "| 1.30× † [1.20, 1.40] | **undecided: plain decoding ran with other settings** |" in page
    assert "threads=2`" in page
    assert does_it_pay.UNLIKE in page
    slower = {"value": 0.8, "ci_low": 0.7, "ci_high": 0.9}
    (row,) = does_it_pay.rows(document("s", PLAIN, dflash(80.0, speedup=slower, plain_unlike=False)))
    assert row.verdict == "plain decoding wins"


def test_a_study_without_plain_decoding_or_without_figures_has_no_row() -> None:
    assert does_it_pay.rows(document("s", dflash(80.0))) == []
    assert does_it_pay.rows(document("s", PLAIN, setting(0.0) | {"decode_tps": None})) == []


def two() -> list[dict[str, Any]]:
    ratio = {"value": 0.8, "ci_low": 0.7, "ci_high": 0.9}
    small = document("small", PLAIN, dflash(80.0, step_ms=25.0, acceptance_length=2.0, speedup=ratio))
    knobs = {**PLAIN_KNOBS, "target_precision": "f32"}
    plain = setting(40.0, speculative=False, knobs=knobs)
    large = document(
        "large",
        plain,
        dflash(50.0, n=1, step_ms=40.0, acceptance_length=2.0, knobs=knobs | {"spec_type": "draft-dflash"}),
    )
    return [small, large]


def test_the_page_says_what_differs_and_what_is_the_same() -> None:
    page = does_it_pay.markdown(two())
    assert "target_precision: as_shipped" in page
    assert "target_precision: f32" in page
    assert "The same for all: threads: 1; engine: llamacpp" in page
    assert "| 2.00 | 2.50 | 0.80× [0.70, 0.90] | **plain decoding wins** |" in page
    assert "**undecided: too few runs**" in page


def test_page_and_picture_are_written(tmp_path: Path) -> None:
    folders = []
    for entry in two():
        folder = tmp_path / entry["study"]
        folder.mkdir()
        (folder / "findings.json").write_text(json.dumps(entry))
        folders.append(str(folder))
    page = does_it_pay.write([does_it_pay.load(folder) for folder in folders], tmp_path / "out")
    assert page.read_text().startswith("# Does speculation pay? — MEASURED")
    assert (tmp_path / "out" / "does_it_pay.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "out" / "does_it_pay.svg").read_bytes()


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        does_it_pay.load(tmp_path / "none")
    (tmp_path / "findings.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"is not a findings\.json"):
        does_it_pay.load(tmp_path)
    (tmp_path / "findings.json").write_text("{")
    with pytest.raises(ConfigError, match=r"is not a findings\.json"):
        does_it_pay.load(tmp_path)
    with pytest.raises(ConfigError, match="nothing to compare"):
        does_it_pay.write([document("s", PLAIN)], tmp_path)
    mixed = [document("a", PLAIN, dflash(80.0)), document("b", PLAIN, dflash(80.0), measurement="emulated")]
    with pytest.raises(ConfigError, match="are not compared"):
        does_it_pay.write(mixed, tmp_path)
