"""Several objectives, constraints, held-out turns and unequal texts: what the findings say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import jsonschema
import msgspec
import pytest

from dflash_sweep import objective
from dflash_sweep.records import Measurement, Role, StoredTrial, StudyInfo, TurnCounters
from dflash_sweep.report import front, pareto
from dflash_sweep.report.answer import answer
from dflash_sweep.report.assumptions import assumptions
from dflash_sweep.report.findings_json import findings_json, schema
from dflash_sweep.report.markdown import Renderer
from dflash_sweep.report.material import Material, collect
from dflash_sweep.report.page import findings
from dflash_sweep.report.style import Stamp
from dflash_sweep.report.texts import Texts, texts_for

pytestmark = pytest.mark.long

EN = texts_for("en")
BOTH = ("decode_tps", "vram_mib")


@pytest.fixture
def material(
    build_study: Callable[..., StudyInfo], build_trials: Callable[..., Sequence[StoredTrial]]
) -> Callable[..., Material]:
    """A study of 60 trials; `change` may alter each of its rows."""

    def made(change: Callable[[StoredTrial], StoredTrial] = lambda trial: trial, **fields: object) -> Material:
        return collect(build_study(**fields), [change(trial) for trial in build_trials(60)])

    return made


def json_of(found: Material) -> dict[str, object]:
    content: dict[str, object] = msgspec.json.decode(findings_json(found, answer(found, EN), EN, None, {}))
    jsonschema.validate(content, schema())
    return content


def slowed(counters: TurnCounters) -> TurnCounters:
    return replace(counters, decode_ms=3 * (counters.decode_ms or 0.0))


def test_the_front_of_the_findings_is_that_of_the_means(material: Callable[..., Material]) -> None:
    found = material(objectives=BOTH)
    placed = {entry.candidate.number: entry.values for entry in front.placed(found)}
    members = front.members(found)
    assert {entry.candidate.number for entry in members} == set(objective.front(placed, BOTH))
    assert 2 <= len(members) < len(placed)
    speeds = [entry.values[0] for entry in members]
    assert speeds == sorted(speeds, reverse=True)
    memory = [entry.values[1] for entry in members]
    assert memory == sorted(memory, reverse=True)  # who is slower on the front takes less
    listed = json_of(found)["front"]
    assert isinstance(listed, dict)
    assert [setting["values"]["vram_mib"] for setting in listed["settings"]] == memory
    assert [entry["direction"] for entry in listed["objectives"]] == ["maximize", "minimize"]


def test_the_page_has_the_front_as_table_and_picture_once(material: Callable[..., Material]) -> None:
    found = material(objectives=BOTH)
    page = findings(found, answer(found, EN), EN, ["pareto", "stage_breakdown"], None, full=True)
    text = Renderer({"pareto": "figures/pareto.png", "stage_breakdown": "x.png"}, "results.csv").render(page)
    assert "## The front of the objectives" in text
    assert text.count("figures/pareto.png") == 1
    assert all(f"| #{entry.candidate.number} " in text for entry in front.members(found))
    assert "decode_tps decides who is confirmed and who wins, vram_mib only who is on the front." in text


def test_the_figure_shows_the_chosen_objectives(material: Callable[..., Material]) -> None:
    found = material(objectives=("decode_tps", "ttft_ms"))
    figure = pareto.draw(found, EN, Stamp(measurement=Measurement.EMULATED, word="EMULATED", source="x"))
    assert figure is not None
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == (EN("axis.ttft_ms"), EN("axis.decode_tps"))


def test_with_one_objective_there_is_no_front(material: Callable[..., Material]) -> None:
    found = material()
    assert front.members(found) == ()
    assert front.front_blocks(found, EN, None) == []
    assert json_of(found)["front"] is None


def test_who_breaks_a_limit_is_off_the_front_and_cannot_win(material: Callable[..., Material]) -> None:
    """Budgets of 32 and more take 17000 + 77.625 · 32 = 19484 MiB and more."""
    found = material(objectives=BOTH, config={"constraints": {"vram_mib": "<= 19000"}})
    assert found.barred
    assert all(int(str(entry.knobs["budget"])) < 32 for entry in found.eligible)
    assert all(not entry.barred for entry in front.members(found))
    assert any(entry.barred for entry in front.placed(found))
    reached = answer(found, EN)
    assert reached.run is not None
    assert reached.run.number not in found.barred
    assert f"cannot win: {len(found.barred)} settings" in " ".join(assumptions(found, EN))
    barred_finalist = next(number for number in found.barred if (found.own["candidate"] == number).sum() > 1)
    assert f"Candidate {barred_finalist} cannot win (constraints.vram_mib: " in reached.statement


def test_where_nobody_keeps_the_limits_plain_decoding_is_the_answer(material: Callable[..., Material]) -> None:
    found = material(config={"constraints": {"vram_mib": "<= 16600"}})
    reached = answer(found, EN)
    assert reached.outcome == "plain_wins"
    assert reached.statement.startswith("No speculative setting keeps all constraints (constraints.vram_mib: ")
    assert reached.run is found.baseline


@pytest.mark.parametrize(
    ("lang", "said"), [("en", "not bit-equal to plain decoding: "), ("zh", "与普通解码不逐位相同：")]
)
def test_a_contender_that_writes_other_text_is_named(material: Callable[..., Material], lang: str, said: str) -> None:
    def written(differing: int) -> Callable[[StoredTrial], StoredTrial]:
        """Plain decoding three times slower than it is, so that speculation wins, and so many texts of its own."""

        def change(trial: StoredTrial) -> StoredTrial:
            turns = tuple(
                replace(turn, text_sha256="other" if turn.index < differing else "same")
                if trial.speculative
                else replace(turn, text_sha256="same", counters=slowed(turn.counters))
                for turn in trial.result.turns
            )
            return replace(trial, result=replace(trial.result, turns=turns))

        return change

    texts: Texts = texts_for(lang)
    assert said in answer(material(written(3)), texts).statement
    assert said not in answer(material(written(0)), texts).statement


def test_the_page_says_which_turns_the_confirm_runs_replayed(material: Callable[..., Material]) -> None:
    same = " ".join(assumptions(material(), EN))
    assert "The confirm runs replayed the turns of the search" in same

    def elsewhere(trial: StoredTrial) -> StoredTrial:
        unseen = {"trace_sha256": "cd" * 32, "trace_name": "agent-check", "comparability_key": "other"}
        return replace(trial, **unseen) if trial.role is Role.CONFIRM else trial  # type: ignore[arg-type]

    found = material(elsewhere)
    assert "The confirm runs replayed other turns than the search: agent-check, 10 turns" in " ".join(
        assumptions(found, EN)
    )
    own = {str(uid) for entry in found.candidates for uid in entry.uids}
    assert not own & {trial.uid for trial in found.stored if trial.role is Role.CONFIRM}  # never pooled
    assert answer(found, EN).outcome in ("winner", "tie", "plain_wins")
