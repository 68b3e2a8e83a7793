"""The course of whole studies: phases alone, budgets, constraints, held-out turns, seeds and what must agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_sweep.analysis.intervals import log_mean_interval
from dflash_sweep.driver import Driver
from dflash_sweep.engines import get
from dflash_sweep.errors import ConfigError, StorageError, StudyFailed
from dflash_sweep.records import Role, TrialSpec
from dflash_sweep.run import check_folder
from dflash_sweep.store import Store
from fakes.studying import Bench, Says

pytestmark = pytest.mark.long


def by_budget(spec: TrialSpec) -> Says:
    """Plain decoding at 50 tok/s; speculation faster with the tree's budget, and hungrier."""
    if not spec.speculative:
        return Says(tps=50.0 + 0.1 * spec.repeat, telemetry={"energy_j": 300.0, "peak_memory_mib": 10_000.0})
    budget = float(str(spec.knobs.get("budget") or 22))
    energy, memory = 300.0 * budget / 10, 10_000 + 100 * budget
    return Says(tps=60 + budget + 0.1 * spec.repeat, telemetry={"energy_j": energy, "peak_memory_mib": memory})


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    return lambda measure=by_budget: Bench(tmp_path, measure)


ONE_AXIS = ("~space.target_feat_ctx", "~space.proposal_temp", "~space.top_k", "~space.chain_seed",
            "~space.cache_type_k", "~space.cache_type_v", "seed_points=[{budget: 22}]")  # fmt: skip


def confirmed(bench: Bench, name: str = "s") -> set[int]:
    return {
        trial.candidate for trial in bench.trials(name) if trial.role is Role.CONFIRM and trial.candidate is not None
    }


# ---------------------------------------------------------------- phases


def test_each_phase_can_be_played_alone(bench: Callable[..., Bench]) -> None:
    one = bench()
    info = one.drive("phases=[calibrate]")
    assert one.roles() == [Role.BASELINE, Role.BASELINE, Role.CALIBRATE]
    assert info.stop_reason == "only these phases were asked for: calibrate"
    one.drive("phases=[gate]", "protocol.gate=true")
    assert len(one.trials()) == 3
    one.drive("phases=[search]", *ONE_AXIS)
    assert one.roles()[3:] == [Role.SEARCH] * 4
    info = one.drive("phases=[confirm]", *ONE_AXIS)
    assert set(one.roles()[7:]) == {Role.CONFIRM}
    assert info.confirmed_candidate is not None
    again = one.drive("phases=[gate]", "protocol.gate=true", *ONE_AXIS)
    assert again.confirmed_candidate == info.confirmed_candidate  # what was concluded stays


@pytest.mark.parametrize(("phase", "needed"), [("gate", "calibrate"), ("search", "calibrate"), ("confirm", "search")])
def test_a_phase_without_its_inputs_starts_and_writes_nothing(
    bench: Callable[..., Bench], phase: str, needed: str
) -> None:
    one = bench()
    with pytest.raises(StorageError, match=f"phases={phase}: study 's' has no measurement .*; play {needed} first"):
        one.drive(f"phases=[{phase}]", "protocol.gate=true")
    assert one.specs == []
    with Store(f"sqlite:///{one.folder / 'studies.db'}") as store:
        assert store.study("s") is None


def test_a_whole_study_and_its_parts_come_to_the_same(bench: Callable[..., Bench], tmp_path: Path) -> None:
    parts = bench()
    for phase in ("calibrate", "search", "confirm"):
        parts.drive(f"phases=[{phase}]")
    (tmp_path / "whole").mkdir()
    whole = Bench(tmp_path / "whole", by_budget)
    whole.drive()
    assert [trial.uid for trial in parts.trials()] == [trial.uid for trial in whole.trials()]


# ---------------------------------------------------------------- objectives and constraints


def test_several_objectives_confirm_the_front_as_well(bench: Callable[..., Bench]) -> None:
    one = bench()
    info = one.drive(*ONE_AXIS, "n_trials=7", "objective=[decode_tps,joules_per_token]", "sampler=nsga2",
                     "protocol.confirm_top=1")  # fmt: skip
    budgets = {trial.candidate: trial.knobs["budget"] for trial in one.trials() if trial.role is Role.SEARCH}
    assert sorted(budgets.values(), key=str) == [12, 16, 22, 28, 32, 40, 8]
    # every budget is on the front: faster costs more. The fastest and, from the front, the most frugal are measured.
    assert {budgets[number] for number in confirmed(one)} == {40, 8}
    assert (info.objective, info.objectives) == ("decode_tps", ("decode_tps", "joules_per_token"))
    assert info.confirmed_candidate is not None
    assert budgets[info.confirmed_candidate] == 40  # the first objective decides


def test_who_breaks_a_limit_is_never_confirmed(bench: Callable[..., Bench]) -> None:
    one = bench()
    info = one.drive(*ONE_AXIS, "n_trials=7", "constraints.vram_mib=<= 12500")  # a budget of 25 at most
    budgets = {trial.candidate: trial.knobs["budget"] for trial in one.trials() if trial.role is Role.SEARCH}
    assert {budgets[number] for number in confirmed(one)} == {22, 16}
    assert info.confirmed_candidate is not None
    assert budgets[info.confirmed_candidate] == 22


def test_a_study_in_which_nobody_keeps_the_limits_says_so(bench: Callable[..., Bench]) -> None:
    one = bench()
    info = one.drive("constraints.vram_mib=<= 10000")
    assert Role.CONFIRM not in one.roles()
    assert info.confirmed_candidate is None
    assert info.stop_reason is not None
    assert "No candidate keeps all constraints; candidate 0" in info.stop_reason
    assert "MiB, must be <= 10000 MiB" in info.stop_reason


def test_a_winner_that_breaks_a_limit_only_when_confirmed_is_none(bench: Callable[..., Bench]) -> None:
    def warms_up(spec: TrialSpec) -> Says:
        says = by_budget(spec)
        hot = spec.role is Role.CONFIRM and spec.knobs.get("budget") == 40
        return Says(tps=says.tps, telemetry={"max_temperature_c": 90.0 if hot else 70.0})

    one = bench(warms_up)
    info = one.drive(*ONE_AXIS, "n_trials=7", "constraints.max_temperature_c=<= 83")
    budgets = {trial.candidate: trial.knobs["budget"] for trial in one.trials() if trial.role is Role.SEARCH}
    assert {budgets[number] for number in confirmed(one)} == {40, 32}
    assert info.confirmed_candidate is not None
    assert budgets[info.confirmed_candidate] == 32


def test_a_limit_that_nothing_tells_ends_the_study_before_the_search(bench: Callable[..., Bench]) -> None:
    one = bench()
    with pytest.raises(StudyFailed, match=r"constraints\.max_temperature_c cannot be known here: Test card does not"):
        one.drive("constraints.max_temperature_c=<= 83")
    assert one.roles() == [Role.BASELINE] * 2


def test_an_objective_that_nothing_tells_ends_the_study_with_the_reason(bench: Callable[..., Bench]) -> None:
    one = bench(lambda spec: Says())
    said = "plain decoding could not be measured: joules_per_token is not known: Test card does not tell its power"
    with pytest.raises(StudyFailed, match=said):
        one.drive("objective=joules_per_token")


@pytest.mark.parametrize("key", ["objective=ttft_ms", "constraints.ttft_ms=<= 500"])
def test_the_clients_times_are_refused_where_the_servers_clock_is_virtual(
    bench: Callable[..., Bench], key: str
) -> None:
    one = bench()
    with pytest.raises(ConfigError, match="the client's times are real, this server's clock is virtual"):
        one.drive(key)
    assert one.specs == []


def test_texts_that_differ_bar_a_setting_only_under_the_limit_and_are_named_without(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    def other_text(spec: TrialSpec) -> Says:
        says = by_budget(spec)
        return Says(tps=says.tps, text="other" if spec.knobs.get("budget") == 40 and spec.speculative else "same")

    free = bench(other_text)
    with free.context(*ONE_AXIS, "n_trials=7") as context:
        from dflash_sweep.driver import Driver

        info = Driver(context).run()
        statement = context.watcher.said[-1]  # type: ignore[attr-defined]
    assert info.confirmed_candidate is not None
    assert f"Candidate {info.confirmed_candidate} is not bit-equal to plain decoding: 9 of 9 turns" in statement

    (tmp_path / "exact").mkdir()
    exact = Bench(tmp_path / "exact", other_text)
    info = exact.drive(*ONE_AXIS, "n_trials=7", "constraints.bit_equal=true")
    budgets = {trial.candidate: trial.knobs["budget"] for trial in exact.trials() if trial.role is Role.SEARCH}
    assert budgets[info.confirmed_candidate] == 32


# ---------------------------------------------------------------- repeats, budgets


def test_calibration_goes_on_until_a_mean_is_known(bench: Callable[..., Bench]) -> None:
    """Runs of 50 and 60 tok/s in turn: the interval's half width falls under 15 % at some count, not before."""
    one = bench(lambda spec: Says(tps=50.0 + 10 * (spec.repeat % 2)))
    one.drive("phases=[calibrate]", "protocol.half_width=0.15", "protocol.max_repeats=9")
    count = one.roles().count(Role.BASELINE)
    values = [50.0 + 10 * (place % 2) for place in range(count)]

    def half(numbers: list[float]) -> float:
        found = log_mean_interval(numbers)
        assert found.low is not None
        assert found.high is not None
        return (found.high - found.low) / 2 / found.value

    assert half(values) <= 0.15 < half(values[:-1])
    assert one.roles().count(Role.CALIBRATE) == count


def test_calibration_never_makes_more_than_its_most(bench: Callable[..., Bench]) -> None:
    one = bench(lambda spec: Says(tps=50.0 + 40 * (spec.repeat % 2)))
    one.drive("phases=[calibrate]", "protocol.half_width=0.01", "protocol.max_repeats=4", "protocol.default_repeats=0")
    assert one.roles() == [Role.BASELINE] * 4


def an_hour_each(spec: TrialSpec) -> Says:
    """Trials that a stored study says took an hour each, one after another."""
    hour = an_hour_each.calls  # type: ignore[attr-defined]
    an_hour_each.calls += 1  # type: ignore[attr-defined]
    return Says(tps=by_budget(spec).tps, wall_s=3600.0, started_utc=f"2026-01-01T{hour:02d}:00:00+00:00")


def test_a_budget_counts_what_earlier_drivers_spent(bench: Callable[..., Bench]) -> None:
    an_hour_each.calls = 0  # type: ignore[attr-defined]
    one = bench(an_hour_each)
    one.drive("phases=[calibrate]")  # three hours by its rows
    info = one.drive("budget.hours=2")
    assert one.roles()[3:] == []
    assert info.stop_reason == "the budget of 2 h is spent"
    info = one.drive("budget.money=5", "budget.price_per_hour=2")
    assert info.stop_reason == "the budget of 5 in money is spent (1 device(s) at 2 an hour for 2.5 h)"
    info = one.drive("budget.money=50", "budget.price_per_hour=2", "phases=[search]")
    assert one.roles()[3:] == [Role.SEARCH] * 4
    info = one.drive("budget.hours=6")  # the confirm phase would need more: its blocks are not begun
    assert Role.CONFIRM not in one.roles()
    assert info.stop_reason == "the budget of 6 h is spent"
    info = one.drive("budget.hours=100")
    assert one.roles().count(Role.CONFIRM) == 2 * 3
    assert info.stop_reason is None


def test_a_budget_that_ends_before_the_first_candidate_is_no_failure(bench: Callable[..., Bench]) -> None:
    an_hour_each.calls = 0  # type: ignore[attr-defined]
    one = bench(an_hour_each)
    one.drive("phases=[calibrate]")  # three hours; half of four is kept back for the confirm phase
    info = one.drive("budget.hours=4", "phases=[search,confirm]")
    assert info.status == "finished"
    assert info.stop_reason == "the budget of 4 h is spent but for what the confirm phase needs"
    assert Role.SEARCH not in one.roles()


def test_the_search_leaves_the_confirm_phase_its_share(bench: Callable[..., Bench]) -> None:
    an_hour_each.calls = 0  # type: ignore[attr-defined]
    one = bench(an_hour_each)
    one.drive("phases=[calibrate,search]")  # seven hours
    # 6 more runs of an hour are foreseen for confirming: of a budget of 9 h half of it, 4.5 h, is kept back
    info = one.drive("budget.hours=9", "n_trials=9")
    assert one.roles().count(Role.SEARCH) == 4
    assert one.roles().count(Role.CONFIRM) == 2 * 3
    assert info.stop_reason == "the budget of 9 h is spent but for what the confirm phase needs"


# ---------------------------------------------------------------- held-out turns


def test_the_confirm_phase_replays_turns_that_the_search_has_not_seen(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.drive("trace=workloads", "protocol.held_out=0.3")
    turns = {
        role: {(turn.conversation, turn.index) for spec in one.specs if spec.role is role for turn in spec.trace.turns}
        for role in (Role.BASELINE, Role.SEARCH, Role.CONFIRM, Role.CONTROL)
    }
    assert turns[Role.BASELINE] == turns[Role.SEARCH]
    assert not turns[Role.SEARCH] & turns[Role.CONFIRM]
    assert len(turns[Role.SEARCH] | turns[Role.CONFIRM]) == 13
    keys = {trial.comparability_key for trial in one.trials() if trial.role in (Role.SEARCH, Role.BASELINE)}
    assert not keys & {trial.comparability_key for trial in one.trials() if trial.role is Role.CONFIRM}
    plain = [trial for trial in one.trials() if trial.role is Role.CONFIRM and not trial.speculative]
    assert len(plain) == 2  # plain decoding on the same turns as the finalists


# ---------------------------------------------------------------- seeds


def test_the_best_of_an_earlier_study_are_tried_first(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.drive(*ONE_AXIS, "n_trials=7", "phases=[calibrate,search]", name="earlier")
    info = one.drive(*ONE_AXIS, "seed_from=[earlier]", "space.budget=choice(8,12,16,22,32)", name="later")
    asked = [trial.knobs["budget"] for trial in one.trials("later") if trial.role is Role.SEARCH]
    assert asked[:3] == [22, 32, 16]  # the user's own, then the best that fit: 40 and 28 are not in this space
    (own, *seeds) = info.provenance["seeds"]
    assert own["source"] == "seed_points[0]"
    assert [seed["point"] for seed in seeds] == [{"budget": 32}, {"budget": 16}]
    best = next(trial for trial in one.trials("earlier") if trial.knobs.get("budget") == 32)
    assert seeds[0]["trials"] == [best.number]
    assert seeds[0]["study"] == "earlier"


def test_without_seed_points_the_engines_defaults_come_first(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.drive(*ONE_AXIS[:6], "space.budget=choice(41, 22)", "seed_points=[]", "n_trials=1", "phases=[calibrate,search]")
    with one.context() as context:
        default = next(knob.default for knob in context.engine.knobs if knob.name == "budget")
    assert [trial.knobs["budget"] for trial in one.trials() if trial.role is Role.SEARCH] == [default] == [22]


def test_a_seed_study_that_is_not_stored_is_named(bench: Callable[..., Bench]) -> None:
    one = bench()
    with pytest.raises(ConfigError, match="seed_from=nope: there is no such study; stored: none"):
        one.drive("seed_from=[nope]")
    assert one.specs == []


def test_a_seed_point_that_a_changed_space_does_not_hold_is_left_out_and_named(bench: Callable[..., Bench]) -> None:
    one = bench()
    given = (
        *ONE_AXIS[:6],
        "space.budget=choice(8,16)",
        "seed_points=[{budget: 22}, {budget: 16, top_k: 4}, {top_k: 1}]",
    )
    with one.context(*given) as context:
        assert context.preflight.seed_points == ({"budget": 16},)
        assert context.preflight.warnings[-3:] == (
            "seed_points[0] is left out: budget=22 is not on its axis (8, 16)",
            "seed_points[1].top_k is left out: not an axis of this space",
            "seed_points[2].top_k is left out: not an axis of this space",
        )
    info = one.drive(*given, "n_trials=1", "phases=[calibrate,search]")
    assert [seed["point"] for seed in info.provenance.get("seeds", [{"point": {"budget": 16}}])] == [{"budget": 16}]
    assert next(spec.knobs["budget"] for spec in one.specs if spec.role is Role.SEARCH) == 16


def test_a_misspelt_seed_point_starts_nothing(bench: Callable[..., Bench]) -> None:
    one = bench()
    with pytest.raises(ConfigError, match=r"seed_points\[0\].*budgett"):
        one.drive(*ONE_AXIS[:6], "seed_points=[{budgett: 22}]")
    assert one.specs == []


# ---------------------------------------------------------------- taking a study up again


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trace=agent", "trace.sha256="),
        ("replay.max_tokens=32", "replay.max_tokens=32: the stored study 's' has 128"),
        ("fixed.verifier=fast_batched", "knobs.verifier=fast_batched: the stored study 's' has exact"),
        ("engine.n_ctx=16384", "engine.n_ctx=16384: the stored study 's' has 32768"),
        ("objective=[decode_tps,vram_mib]", "objective=decode_tps,vram_mib: the stored study 's' has decode_tps"),
    ],
)
def test_a_stored_study_that_asked_something_else_is_not_gone_on_with(
    bench: Callable[..., Bench], override: str, said: str
) -> None:
    one = bench()
    one.drive("phases=[calibrate]")
    before = len(one.specs)
    with pytest.raises(StorageError) as caught:
        one.drive(override)
    assert said in str(caught.value)
    assert "restore it or choose another study_name" in str(caught.value)
    assert len(one.specs) == before


# ---------------------------------------------------------------- ends that are no failures, and ends in time


def test_a_continuous_space_in_which_nothing_can_be_launched_comes_to_an_end(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_sweep.jobs.MAX_IMPOSSIBLE", 12)
    monkeypatch.setattr(type(get("emulator")), "check", lambda *_: ("no server takes this",))
    one = bench()
    given = (*ONE_AXIS[:1], *ONE_AXIS[2:6], "~space.budget", "seed_points=[]", "+fixed.budget=22")
    with one.context(
        *given, "space.proposal_temp=interval(0.5,1.0)", "n_trials=2", "phases=[calibrate,search]"
    ) as context:
        Driver(context).run()
        assert any("no server can be launched" in text for text in context.watcher.said)  # type: ignore[attr-defined]
    assert Role.SEARCH not in one.roles()


def test_a_report_folder_that_cannot_be_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"report\.dir: .*file cannot be made"):
        check_folder(tmp_path / "file")
    check_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()
