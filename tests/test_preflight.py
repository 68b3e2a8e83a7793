"""What a study asks for is turned into the knobs' declared types before anything starts, or refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dflash_sweep import engines, traces
from dflash_sweep.engines.rendering import render
from dflash_sweep.errors import ConfigError
from dflash_sweep.preflight import Preflight, bind_axis, bind_knobs, examine
from dflash_sweep.records import EngineSettings, ReplayPolicy
from dflash_sweep.space import parse_axis, parse_space
from fakes.builders import make_trace

LLAMACPP = engines.get("llamacpp")


def yaml(text: str) -> object:
    """A section as a configuration file gives it: YAML 1.1 with its own idea of on, off and 3:1."""
    return OmegaConf.to_container(OmegaConf.create(text))


def test_on_and_off_of_a_configuration_file_are_the_words_the_server_takes() -> None:
    section = yaml("flash_attn: [on, off, auto]")
    assert section == {"flash_attn": [True, False, "auto"]}, "otherwise the next lines say nothing"
    axis = bind_axis(LLAMACPP, parse_axis("flash_attn", section["flash_attn"]))
    assert axis.values == ("on", "off", "auto")
    for value in axis.values:
        argv, _ = render(LLAMACPP.knobs, {"flash_attn": value})
        assert argv == ("--flash-attn", value)


@pytest.mark.parametrize(("word", "meant"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("'on'", "on")])
def test_on_and_off_are_kept_in_fixed_values_and_seed_points(word: str, meant: str) -> None:
    section = yaml(f"flash_attn: {word}")
    assert bind_knobs(LLAMACPP, section, "fixed") == {"flash_attn": meant}  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["3:1", "010", "1.10", "yes"])
def test_words_that_yaml_changed_are_refused_where_text_is_needed(word: str) -> None:
    section = yaml(f"cache_type_k: {word}")
    with pytest.raises(ConfigError, match=r"fixed\.cache_type_k=.* it takes .*, in quotes"):
        bind_knobs(LLAMACPP, section, "fixed")  # type: ignore[arg-type]


def test_numbers_get_their_knobs_type() -> None:
    ddtree = engines.get("ddtree")
    assert bind_axis(ddtree, parse_axis("proposal_temp", "choice(1, 0.5)")).values == (1.0, 0.5)
    with pytest.raises(ConfigError, match=r"space\.budget='22' is not allowed: it takes a whole number"):
        bind_axis(ddtree, parse_axis("budget", "choice('22')"))
    for value in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"fixed\.proposal_temp=.* it takes"):
            bind_knobs(ddtree, {"proposal_temp": value}, "fixed")


def test_an_unknown_knob_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"space\.budjet: engine ddtree has no such knob; it has: .*budget"):
        bind_axis(engines.get("ddtree"), parse_axis("budjet", 4))


def examined(folder: Path, **header: Any) -> Preflight:
    trace = make_trace()
    path = folder / "trace.jsonl"
    traces.save(replace(trace, header=replace(trace.header, **header)), path)
    return examine(
        engines.get("emulator"),
        EngineSettings(name="emulator"),
        trace_path=str(path),
        max_turns=None,
        policy=ReplayPolicy(),
        space=parse_space({"budget": "choice(8, 22)"}),
        fixed={},
        plain={},
        seed_points=(),
        devices=tuple,
    )


def test_invented_texts_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """Filler and repeated text make drafting look great or useless: nothing is tuned on it."""
    with pytest.raises(ConfigError, match="acceptance depends on the real text"):
        examined(tmp_path, content_kind="synthetic")


def test_what_a_trace_cannot_tell_is_shown_before_it_is_replayed(tmp_path: Path) -> None:
    losses = ("the system prompt was not recorded", "tool schemas are inferred")
    assert examined(tmp_path, losses=losses).warnings == tuple(f"trace: {loss}" for loss in losses)
