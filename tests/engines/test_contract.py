"""What must hold for every adapter of the registry, whatever its engine: declared facts, argv, parsing, judging."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_sweep import metrics
from dflash_sweep.engines import REGISTRY, Engine, KnobDef, LaunchRequest, get
from dflash_sweep.engines.rendering import check_value
from dflash_sweep.errors import ConfigError, EngineMissing, FailureKind
from dflash_sweep.records import Device, EngineBuild, EngineSettings, Exchange, Knobs, KnobValue, TurnCounters
from fakes import micropair

ENGINES = sorted(REGISTRY)
LAUNCHING = [name for name in ENGINES if get(name).facts.launches]
FOREIGN = (Path(__file__).parents[1] / "golden" / "foreign.log").read_bytes()
CPU = Device(kind="cpu", index=0, name="test CPU")

SETTINGS: dict[str, dict[str, Any]] = {
    "attach": {"options": {"url": "http://127.0.0.1:1"}},
    "sglang": {"options": {"model": "org/target", "draft_model": "org/draft"}},
    "vllm": {"options": {"model": "org/target", "draft_model": "org/draft"}},
}
NEEDED: dict[str, Knobs] = {
    "vllm": {"draft_max": 7},
    "beellama": {"draft_max": 7},
    "llamacpp": {"spec_type": "draft-dflash"},
}
"""Knobs without which an engine cannot speculate at all."""


PAIR: dict[str, str] = {}
"""Paths of a real pair of small model files: some adapters read them before they say anything."""


@pytest.fixture(scope="module", autouse=True)
def _model_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    pair = micropair.write_pair(tmp_path_factory.mktemp("models"))
    PAIR.update(model=str(pair.target), draft_model=str(pair.draft))


def engine_settings(name: str) -> EngineSettings:
    plain = dict(PAIR) if name not in SETTINGS else {}
    return EngineSettings(name=name, **{**plain, **SETTINGS.get(name, {})})


def build_of(name: str) -> EngineBuild:
    return EngineBuild(
        engine=name, version="0.33.0", binary="/bin/server", dialect="B1" if name == "beellama" else "G2"
    )


def launch(name: str, knobs: Knobs, speculative: bool = True) -> tuple[tuple[str, ...], dict[str, str]]:
    request = LaunchRequest(
        settings=engine_settings(name),
        build=build_of(name),
        knobs={**(NEEDED.get(name, {}) if speculative else {}), **knobs},
        speculative=speculative,
        device=CPU,
        host="127.0.0.1",
        port=4321,
    )
    spec = get(name).launch_spec(request)
    return spec.argv, spec.env


def server(name: str, knobs: Knobs, speculative: bool = True) -> tuple[list[str], dict[str, str]]:
    """What is started, whatever the order of the words."""
    argv, env = launch(name, knobs, speculative)
    return sorted(argv), env


def samples(knob: KnobDef) -> list[KnobValue]:
    """Values of every kind that the definition allows: ends of the range, all choices, both switches."""
    if knob.kind == "bool":
        return [True, False]
    if knob.choices:
        return list(knob.choices)
    if knob.kind == "str":
        return ["auto"] if knob.name != "spec_type" else ["draft-dflash", "ngram-simple"]
    ends = [value for value in (knob.low, knob.high) if value is not None] or [1]
    return [int(value) if knob.kind == "int" else float(value) for value in ends]


@pytest.mark.parametrize("name", ENGINES)
def test_declarations_are_complete(name: str) -> None:
    engine = get(name)
    assert engine.name == name
    assert set(engine.facts.stages) <= set(metrics.STAGE_NAMES)
    names = [knob.name for knob in engine.knobs]
    assert len(names) == len(set(names))
    for knob in (*engine.knobs, *engine.options):
        assert knob.kind in ("int", "float", "bool", "choice", "str"), knob.name
        assert knob.scope in ("launch", "request"), knob.name
        assert knob.doc, f"{knob.name} says nothing about itself"
        assert (knob.kind == "choice") <= bool(knob.choices), knob.name
        assert knob.low is None or knob.high is None or knob.low < knob.high, knob.name
        assert check_value(knob, knob.default) is None, knob.name
    for knob in engine.knobs:
        assert (knob.flag is None) != (knob.env is None), f"{knob.name}: exactly one of flag and env"


@pytest.mark.parametrize("name", LAUNCHING)
def test_a_knob_that_is_none_is_not_passed(name: str) -> None:
    for speculative in (True, False):
        plain = server(name, {}, speculative)
        for knob in get(name).knobs:
            if knob.name not in NEEDED.get(name, {}):
                assert server(name, {knob.name: None}, speculative) == plain, knob.name


@pytest.mark.parametrize("name", LAUNCHING)
def test_values_reach_the_command_line_by_their_declared_type(name: str) -> None:
    for knob in get(name).knobs:
        for value in samples(knob):
            if knob.name == "target_precision":
                continue  # makes another model file first: tested with a real one
            argv, env = launch(name, {knob.name: value})
            words = [*argv, *env.values()]
            assert all(isinstance(word, str) for word in words)
            assert not {"True", "False", "None", "nan", "inf", ""} & set(words), (knob.name, value, argv)


@pytest.mark.parametrize("name", LAUNCHING)
def test_zero_is_passed(name: str) -> None:
    for knob in get(name).knobs:
        if knob.kind == "int" and knob.flag and "." not in knob.flag and "TYPE" not in knob.flag and knob.low == 0:
            argv, _ = launch(name, {knob.name: 0})
            if knob.name in get(name).effective_point({knob.name: 0}) and _alive(name, knob.name, 0):
                assert any(a == knob.flag and b == "0" for a, b in pairwise(argv)), knob.name


def _alive(name: str, knob: str, value: KnobValue) -> bool:
    return get(name).effective_point({**NEEDED.get(name, {}), knob: value})[knob] is not None


@pytest.mark.parametrize("name", LAUNCHING)
def test_host_port_model_and_context_are_on_the_command_line(name: str) -> None:
    for speculative in (True, False):
        argv, _ = launch(name, {}, speculative)
        assert {"127.0.0.1", "4321", "8192"} <= set(argv)


@pytest.mark.parametrize("name", LAUNCHING)
def test_plain_decoding_names_no_draft(name: str) -> None:
    draft = engine_settings(name).draft_model or "org/draft"
    assert any(draft in word for word in launch(name, {})[0]), "otherwise the next line says nothing"
    assert not any(draft in word for word in launch(name, {}, speculative=False)[0])


@pytest.mark.parametrize("name", LAUNCHING)
def test_a_stray_variable_is_refused(name: str) -> None:
    request = LaunchRequest(
        settings=replace(engine_settings(name), env={"LD_PRELOAD": "x"}),
        build=build_of(name),
        knobs=NEEDED.get(name, {}),
        speculative=True,
        device=CPU,
        host="127.0.0.1",
        port=1,
    )
    with pytest.raises(ConfigError, match="LD_PRELOAD"):
        get(name).launch_spec(request)


@pytest.mark.parametrize("name", ENGINES)
def test_unknown_knobs_and_bad_values_are_problems(name: str) -> None:
    engine = get(name)
    problems = engine.check(engine_settings(name), build_of(name), {"no_such_knob": 1})
    assert any("no_such_knob" in problem for problem in problems)
    for knob in engine.knobs:
        wrong: KnobValue = "yes" if knob.kind != "str" else 5
        point = {**NEEDED.get(name, {}), knob.name: wrong}
        problems = engine.check(engine_settings(name), build_of(name), point)
        dead = engine.effective_point(point)[knob.name] is None
        assert dead or any(knob.name in problem for problem in problems), knob.name
        assert all("\n" not in problem for problem in problems)


@pytest.mark.parametrize("name", LAUNCHING)
def test_a_flag_the_build_lacks_is_named_with_the_build(name: str) -> None:
    engine = get(name)
    if not engine.probe.__doc__ or name == "emulator":
        pytest.skip("the emulator is part of this package: its switches are always there")
    build = EngineBuild(
        engine=name, version="1.2.3", binary="/bin/server", dialect="G2", flags=frozenset({"--nothing"})
    )
    for knob in engine.knobs:
        if knob.flag is None or knob.scope != "launch" or knob.name in ("target_precision", "spec_type"):
            continue
        value = next(value for value in samples(knob) if value != (not knob.flag_when) or knob.kind != "bool")
        point = {**NEEDED.get(name, {}), knob.name: value}
        if knob.kind == "bool" or engine.effective_point(point)[knob.name] is None:
            continue
        problems = engine.check(engine_settings(name), build, point)
        flag = knob.flag.split(".")[0].split("TYPE")[0]
        assert any(flag in problem and "1.2.3" in problem for problem in problems), (knob.name, problems)


def _points(engine: Engine) -> st.SearchStrategy[Knobs]:
    return st.fixed_dictionaries(
        {}, optional={knob.name: st.sampled_from([None, *samples(knob)]) for knob in engine.knobs}
    )  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_effective_points_are_fixed_points_of_the_same_knobs(name: str, data: st.DataObject) -> None:
    engine = get(name)
    point = data.draw(_points(engine))
    effective = engine.effective_point(point)
    assert set(effective) == set(point)
    assert engine.effective_point(effective) == effective


@pytest.mark.parametrize("name", [name for name in LAUNCHING if name != "llamacpp"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equal_effective_points_are_equal_servers(name: str, data: st.DataObject) -> None:
    """The command line of a point and of its effective point start the same server."""
    drawn = data.draw(_points(get(name)))
    point = drawn | {knob: drawn.get(knob) or value for knob, value in NEEDED.get(name, {}).items()}
    try:
        own = server(name, point)
    except ConfigError:
        return
    effective = {
        k: v for k, v in get(name).effective_point(point).items() if v is not None or k not in NEEDED.get(name, {})
    }
    if name in ("ddtree", "emulator"):
        return  # dead knobs are still passed there; the server ignores them (its own tests show that)
    assert server(name, effective) == own


# ---------------------------------------------------------------- parsing


def exchange(index: int = 0, **fields: Any) -> Exchange:
    return Exchange(turn_index=index, send_ns=index * 10**9, end_ns=index * 10**9 + 5 * 10**8, **fields)


def parsed(name: str, log: bytes, count: int = 2) -> tuple[TurnCounters, ...]:
    return get(name).parse_trial([exchange(index) for index in range(count)], log)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "log", [b"", FOREIGN, b"\xff" * 1000, b"\r\n" * 100], ids=["empty", "foreign", "bytes", "blank"]
)
def test_a_log_that_says_nothing_gives_unknown_figures(name: str, log: bytes) -> None:
    found = parsed(name, log)
    assert len(found) == 2
    for counters in found:
        assert counters.decode_ms is None
        assert counters.verify_steps is None
        assert counters.draft_tokens is None
        assert counters.stages == ()


@pytest.mark.parametrize("name", ENGINES)
def test_no_exchange_gives_no_record(name: str) -> None:
    assert get(name).parse_trial([], b"some line\n") == ()


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=40, deadline=None)
@given(log=st.binary(max_size=300))
def test_any_bytes_can_be_read(name: str, log: bytes) -> None:
    engine, text = get(name), log.decode(errors="replace")
    assert len(parsed(name, log, 3)) == 3
    engine.memory_mib(text)
    engine.applied({}, True, {}, [], text)
    engine.classify(text, None)


@pytest.mark.parametrize("name", ENGINES)
def test_huge_lines_cost_linear_time(name: str) -> None:
    log = b"\n".join([b"time=" * 1_000_000, b"[" * 5_000_000, b"a=1 " * 1_000_000, b"|  " * 500_000])
    engine, text = get(name), log.decode()
    started = time.process_time()
    parsed(name, log)
    engine.classify(text, 1)
    engine.memory_mib(text)
    engine.applied({}, True, {}, [], text)
    assert time.process_time() - started < 20.0  # a second or two; a pattern that backtracks would take minutes


@pytest.mark.parametrize("name", ENGINES)
def test_figures_of_an_answer_are_taken_without_any_log(name: str) -> None:
    """Usage and the client's clock: 20 tokens, 19 of them in 0.4 s between first and last token."""
    answer = exchange(
        usage={"prompt_tokens": 50, "completion_tokens": 20}, first_token_ns=10**8, last_token_ns=5 * 10**8, chunks=3
    )
    (counters,) = get(name).parse_trial([answer], b"")
    assert counters.output_tokens in (20, None)
    if counters.timing_source == "client":
        assert counters.decode_ms == pytest.approx(400.0)
        assert counters.decode_tokens == 19


@pytest.mark.parametrize("name", ENGINES)
def test_hostile_json_is_unknown_not_an_error(name: str) -> None:
    bad = {
        "predicted_n": 5,
        "predicted_ms": math.nan,
        "predicted_per_second": math.inf,
        "draft_n": "7",
        "prompt_n": None,
    }
    extra = {"metrics": {"generation_time_ms": None, "speculative_decoding": []}, "sglext": "x", "stats": 5}
    answer = exchange(timings=bad, usage={"completion_tokens": None, "prompt_tokens_details": 3}, extra=extra)
    (counters,) = get(name).parse_trial([answer], b"")
    for value in (counters.decode_ms, counters.prompt_ms, counters.server_tps_raw):
        assert value is None or math.isfinite(value)
    assert counters.draft_tokens is None


# ---------------------------------------------------------------- judging


@pytest.mark.parametrize("name", ENGINES)
def test_silence_is_no_failure_and_a_signal_is(name: str) -> None:
    engine = get(name)
    assert engine.classify("", None) is None
    assert engine.classify(FOREIGN.decode(errors="replace"), None) is None
    if engine.facts.launches:
        for code in (-11, 139):
            found = engine.classify("loading\n", code)
            assert found is not None
            assert found[0] is FailureKind.CRASHED
            assert "\n" not in found[1]


@pytest.mark.parametrize("name", ENGINES)
def test_memory_of_a_foreign_log_is_unknown(name: str) -> None:
    assert get(name).memory_mib("nothing of interest\n") == {}


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_applied_that_no_server_showed(name: str) -> None:
    """Our own argument echo, absent pages and strange pages prove nothing about a knob."""
    engine = get(name)
    echo = " ".join(launch(name, {})[0]) if engine.facts.launches else ""
    pages: list[tuple[dict[str, Any], list[Any]]] = [
        ({}, []),
        ({"runtime": 5, "default_generation_settings": {}}, [None, "x", {}]),
    ]
    for props, slots in pages:
        shown = engine.applied({}, True, props, slots, echo)
        assert not {knob.name for knob in engine.knobs} & set(shown)


@pytest.mark.parametrize("name", ENGINES)
def test_request_fields_are_json(name: str) -> None:
    json.dumps(get(name).request_fields(engine_settings(name), {}, "code"))


@pytest.mark.parametrize("name", [name for name in ENGINES if name not in ("emulator", "attach")])
def test_a_missing_binary_is_said_in_words(name: str, tmp_path: Path) -> None:
    missing = tmp_path / "no-such-server"
    with pytest.raises(EngineMissing, match="no-such-server") as error:
        get(name).probe(EngineSettings(name=name, binary=str(missing)))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) > len(str(missing)) + 40, "it must also say how to get the engine"


@pytest.mark.parametrize("name", ENGINES)
def test_registry_names_are_the_adapters_own(name: str) -> None:
    assert get(name).name == name


def test_unknown_engine() -> None:
    with pytest.raises(ConfigError, match="allowed: attach, beellama"):
        get("llama")
