"""Trials that share a server: each finds its prompt cache empty, or has a server of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_sweep import engines, hosting, trial
from dflash_sweep.pool import logical_device
from dflash_sweep.records import (
    EngineSettings,
    Knobs,
    ReplayPolicy,
    Role,
    Trace,
    TraceHeader,
    TrialResult,
    TrialSpec,
    Turn,
)
from dflash_sweep.turn_marks import CACHE_NOT_COLD, COLD_TOLERANCE_TOKENS
from fakes import fake_engine, micropair, microserver

CARD = logical_device("emulated", 0, "rtx4090")
LONG = " ".join(f"fact {number} of a long system prompt." for number in range(120))


def trace() -> Trace:
    """Two conversations that begin with the same long text, each of two turns."""
    turns = []
    for conversation in "ab":
        messages: list[dict[str, Any]] = [{"role": "system", "content": LONG}]
        for index in range(2):
            messages += [{"role": "user", "content": f"{conversation} asks {index}"}]
            turns.append(Turn(conversation=conversation, index=index, messages=tuple(messages), max_tokens=24))
            messages += [{"role": "assistant", "content": f"answer {index}"}]
    return Trace(header=TraceHeader(name="two", source="test"), turns=tuple(turns))


def spec(folder: Path, uid: str, *, knobs: Knobs | None = None, fresh: bool = False, **changes: Any) -> TrialSpec:
    options = {"launch_seed": len(uid) + ord(uid[0]), **changes.pop("options", {})}
    settings = EngineSettings(name="emulator", n_ctx=16384, options=options, extra_args=changes.pop("extra_args", ()))
    made = TrialSpec(
        uid=uid,
        study="s",
        role=Role.SEARCH,
        candidate=0,
        knobs={"budget": 16, "top_k": 8} if knobs is None else knobs,
        engine=settings,
        build=engines.get("emulator").probe(settings),
        trace=trace(),
        policy=ReplayPolicy(max_tokens=24, fresh_server=fresh, min_decode_tokens=1),
        evidence_dir=str(folder / uid),
        timeout_s=60.0,
    )
    return replace(made, **changes)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[trial.Bench]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = trial.Bench(CARD)
    yield made
    made.close()


def cached(result: TrialResult) -> list[int | None]:
    assert result.failure is None, result.failure.message
    return [turn.counters.cached_tokens for turn in result.turns if not turn.warmup]


def marks(result: TrialResult) -> set[str]:
    return {flag for turn in result.turns for flag in turn.counters.flags}


def test_a_second_trial_finds_the_cache_as_empty_as_the_first(bench: trial.Bench, tmp_path: Path) -> None:
    first, second = bench.run(spec(tmp_path, "a")), bench.run(spec(tmp_path, "b"))
    assert first.load_s is not None
    assert second.load_s is None  # the same server, though the seeds of their launches' noise differ
    assert cached(first) == cached(second)
    opening, *later = cached(second)
    assert opening is not None
    assert opening <= COLD_TOLERANCE_TOKENS
    assert all(tokens is not None and tokens > COLD_TOLERANCE_TOKENS for tokens in later)  # within the trial it is used
    assert CACHE_NOT_COLD not in marks(second)
    assert first.launch is not None
    assert "--cache-ram" in first.launch.argv
    assert not (tmp_path / "b" / "server-shared.log").exists()
    assert (tmp_path / "b" / "server.log").read_text().count("slot launch_slot_") == 6  # ready, warm-up, four turns


def test_a_server_that_keeps_prompts_beside_its_slot_is_marked_and_left(bench: trial.Bench, tmp_path: Path) -> None:
    """The user's own word brings the host's prompt cache back: what is not cold is seen, and the server is ended."""
    words = ("--cache-ram", "8192")
    results = [bench.run(spec(tmp_path, uid, extra_args=words)) for uid in ("a", "b", "c")]
    assert [result.load_s is None for result in results] == [False, True, False]
    assert [CACHE_NOT_COLD in marks(result) for result in results] == [False, True, False]


def test_only_equal_launches_share_and_only_where_it_is_allowed(bench: trial.Bench, tmp_path: Path) -> None:
    runs = [
        spec(tmp_path, "a"),
        spec(tmp_path, "b", knobs={"budget": 22, "top_k": 8}),  # another command line
        spec(tmp_path, "c", knobs={"budget": 22, "top_k": 8}, own_server=True),
        spec(tmp_path, "d", knobs={"budget": 22, "top_k": 8}),  # a server of one's own is nobody else's afterwards
        spec(tmp_path, "e", knobs={"budget": 22, "top_k": 8}),
        spec(tmp_path, "f", knobs={"budget": 22, "top_k": 8}, fresh=True),
    ]
    results = [bench.run(run) for run in runs]
    assert [result.failure for result in results] == [None] * 6
    assert [result.load_s is None for result in results] == [False, False, False, False, True, False]


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({}, True),
        ({"own_server": True}, False),
        ({"policy": ReplayPolicy(fresh_server=True)}, False),
        ({"policy": ReplayPolicy(fresh_server=False, concurrency=2)}, False),  # each slot keeps a prompt
    ],
)
def test_who_may_share(tmp_path: Path, changes: dict[str, Any], allowed: bool) -> None:
    wanted = replace(spec(tmp_path, "a"), **changes)
    assert hosting.may_share(engines.get("emulator"), wanted) is allowed


@pytest.mark.parametrize(
    ("engine", "way"),
    [
        ("emulator", "first_request"),
        ("ddtree", "first_request"),
        ("llamacpp", "first_request"),
        ("beellama", "first_request"),
        ("sglang", "/flush_cache"),
        ("vllm", None),
        ("lucebox", None),
    ],
)
def test_engines_say_how_their_prompt_cache_is_emptied(tmp_path: Path, engine: str, way: str | None) -> None:
    adapter = engines.get(engine)
    assert adapter.facts.cold_by == way
    assert hosting.may_share(adapter, spec(tmp_path, "a")) is (way is not None)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_server_with_a_page_for_it_is_told_to_empty_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    monkeypatch.setitem(engines.REGISTRY, "fake", fake_engine.REGISTERED)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    facts = replace(fake_engine.FakeEngine.facts, cold_by="/flush_cache")
    monkeypatch.setattr(fake_engine.FakeEngine, "facts", facts)
    policy = ReplayPolicy(max_tokens=64, turn_timeout_s=20.0, fresh_server=False)
    behaviour = "no_flush" if refuses else "ok"
    made = trial.Bench(fake_engine.CPU)
    try:
        results = [made.run(fake_engine.spec(tmp_path, behaviour, uid=uid, policy=policy)) for uid in "ab"]
    finally:
        made.close()
    assert [result.failure for result in results] == [None, None]
    assert (results[1].load_s is None) is not refuses  # one that refuses is not shared
    assert ("flushed" in (tmp_path / "a" / "server.log").read_text()) is False  # nothing of the next trial's


# ---------------------------------------------------------------- a real llama.cpp server


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--cache-ram", "256")])
def test_a_real_server_is_as_cold_for_the_second_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The same trace twice on one llama-server: by its own count the second run finds nothing of the first in the
    cache, unless the user's own words keep prompts beside the slot; then the turns say so."""
    pytest.importorskip("xllamacpp", reason="the CPU server is not installed: pip install 'dflash-sweep[cpu]'")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pair = micropair.write_pair(tmp_path)
    text = "A long enough beginning that both conversations share, so that a cache would be of use. " * 3
    system = {"role": "system", "content": text}
    turns = tuple(
        Turn(conversation=name, index=index, messages=(system, {"role": "user", "content": f"{name}{index}"}))
        for name in "ab"
        for index in range(2)
    )

    def run(uid: str) -> TrialSpec:
        return TrialSpec(
            uid=uid, study="s", role=Role.SEARCH, candidate=0, knobs={"threads": 1}, speculative=False,
            engine=replace(microserver.settings(pair.target, None), extra_args=words), build=microserver.UNKNOWN_BUILD,
            trace=Trace(header=TraceHeader(name="t", source="test"), turns=turns), evidence_dir=str(tmp_path / uid),
            policy=ReplayPolicy(max_tokens=8, min_decode_tokens=1, fresh_server=False), timeout_s=120,
        )  # fmt: skip

    made = trial.Bench(microserver.CPU)
    try:
        first, second = made.run(run("first")), made.run(run("second"))
    finally:
        made.close()
    assert second.load_s is None
    openings = [cached(result)[0] for result in (first, second)]
    assert openings[0] is not None
    assert openings[1] is not None
    if words:
        assert openings[1] > COLD_TOLERANCE_TOKENS
        assert CACHE_NOT_COLD in marks(second)
    else:
        assert cached(first) == cached(second)
        assert openings[1] <= COLD_TOLERANCE_TOKENS
        assert CACHE_NOT_COLD not in marks(second)
    assert CACHE_NOT_COLD not in marks(first)
