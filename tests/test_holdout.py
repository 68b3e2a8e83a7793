"""Turns that the search does not see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep import traces
from dflash_sweep.errors import ConfigError, TraceError
from dflash_sweep.holdout import parted
from dflash_sweep.records import ReplayPolicy, Trace
from fakes.builders import make_trace

POLICY = ReplayPolicy()
AGENT, WORKLOADS = (traces.load(traces.resolve(name)) for name in ("agent", "workloads"))


def keys(trace: Trace) -> set[tuple[str, int]]:
    return {(turn.conversation, turn.index) for turn in trace.turns}


@pytest.mark.parametrize("nothing", [None, 0, 0.0])
def test_by_default_confirm_replays_the_same_turns(nothing: float | None) -> None:
    assert parted(AGENT, nothing, POLICY) == (AGENT, None)


def test_conversations_stay_whole() -> None:
    kept, held = parted(WORKLOADS, 0.3, POLICY)
    assert held is not None
    assert len(held.turns) == 4  # 0.3 of 13 conversations of one turn each
    assert keys(kept) | keys(held) == keys(WORKLOADS)
    assert not keys(kept) & keys(held)
    assert len({WORKLOADS.header.sha256, kept.header.sha256, held.header.sha256}) == 3
    assert (kept.header.name, held.header.name) == ("workloads-tune", "workloads-check")


@given(turns=st.integers(2, 30), share=st.floats(0.01, 0.99))
def test_of_one_conversation_turns_are_held_out_evenly_and_never_the_first(turns: int, share: float) -> None:
    trace = make_trace(turns)
    count = round(share * turns)
    if not 0 < count < turns:
        with pytest.raises(ConfigError, match="leaves one side empty"):
            parted(trace, share, POLICY)
        return
    kept, held = parted(trace, share, POLICY)
    assert held is not None
    places = sorted(turn.index for turn in held.turns)
    assert len(places) == count
    assert 0 not in places
    assert keys(kept) | keys(held) == keys(trace)
    gaps = [later - earlier for earlier, later in zip([-1, *places], places, strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_every_turn_of_a_part_can_be_replayed_alone() -> None:
    _, held = parted(AGENT, 0.3, POLICY)
    assert held is not None
    whole = {turn.index: turn.messages for turn in AGENT.turns}
    assert all(turn.messages == whole[turn.index] for turn in held.turns)


def test_a_free_running_conversation_cannot_be_parted() -> None:
    with pytest.raises(ConfigError, match=r"replay\.mode=free_running a conversation cannot be parted"):
        parted(AGENT, 0.3, replace(POLICY, mode="free_running"))


def test_another_trace_by_name() -> None:
    kept, held = parted(AGENT, "workloads", POLICY)
    assert (kept, held) == (AGENT, WORKLOADS)


def test_another_trace_with_turns_of_the_search_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "same.jsonl"
    traces.save(replace(AGENT, turns=AGENT.turns[:2]), path)
    with pytest.raises(ConfigError, match="2 of its 2 turns are in the search's trace as well"):
        parted(AGENT, str(path), POLICY)


def test_a_trace_that_is_not_there_is_named() -> None:
    with pytest.raises(TraceError, match="no_such"):
        parted(AGENT, "no_such", POLICY)


@pytest.mark.parametrize("share", [1.0, -0.1, 2, True])
def test_a_share_lies_between_0_and_1(share: float) -> None:
    with pytest.raises(ConfigError, match="must be a share between 0 and 1"):
        parted(AGENT, share, POLICY)
