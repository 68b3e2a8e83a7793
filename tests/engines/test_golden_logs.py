"""Golden logs of every dialect, each with the figures worked out in its `why`, in disguise and cut off.

`@@N` in a log stands for the moment at which exchange N was sent: its log_start. The JSON beside a log names the
figures that must come out; keys it leaves out are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_sweep.engines import get
from dflash_sweep.records import Exchange, TurnCounters

GOLDEN = Path(__file__).parents[1] / "golden"
OURS = ("attach", "beellama", "lucebox", "sglang", "vllm")
CASES = sorted(path for engine in OURS for path in (GOLDEN / engine).glob("*/*.json"))
NOISE = "10.0.0.1 - - GET /health 200 rt=0.001"


def identifier(path: Path) -> str:
    return "-".join(path.relative_to(GOLDEN).with_suffix("").parts)


def build(text: str, exchanges: list[dict[str, Any]], disguise: Callable[[str], bytes]) -> tuple[list[Exchange], bytes]:
    """The log without its marks, line by line in disguise, and the exchanges with their places in it."""
    log, starts = b"", [0] * len(exchanges)
    for line in text.splitlines():
        if line.startswith("@@"):
            starts[int(line[2:])] = len(log)
        else:
            log += disguise(line)
    made = []
    for index, fields in enumerate(exchanges):
        sent = index * 10**9
        shifted = {key: value + sent if key.endswith("_ns") else value for key, value in fields.items()}
        plain = {"send_ns": sent, "end_ns": sent + 5 * 10**8, "log_start": starts[index], "turn_index": index}
        made.append(Exchange(**{**plain, **shifted}))
    return made, log


def as_dict(counters: TurnCounters) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(counters, name) for name in counters.__dataclass_fields__}
    found["stages"] = {stage.name: stage.total_ms for stage in counters.stages}
    found["flags"] = list(counters.flags)
    histogram = counters.acceptance_histogram
    found["acceptance_histogram"] = None if histogram is None else {str(key): histogram[key] for key in histogram}
    return found


def compare(found: TurnCounters, expected: dict[str, Any]) -> None:
    seen = as_dict(found)
    for name, value in expected.items():
        if isinstance(value, float | dict) and name != "acceptance_histogram":
            assert seen[name] == pytest.approx(value, abs=1e-6), name
        else:
            assert seen[name] == value, name


DISGUISES: dict[str, Callable[[str], bytes]] = {
    "plain": lambda line: f"{line}\n".encode(),
    "crlf": lambda line: f"{line}\r\n".encode(),
    "colours": lambda line: f"\x1b[1;32m{line}\x1b[0m\n".encode(),
    "prefix": lambda line: f"node1 server[12]: {line}\n".encode(),
    "timestamps": lambda line: f"2026-01-02T03:04:05.678901Z {line}\n".encode(),
    "interleaved": lambda line: f"{line}\n{NOISE}\n".encode(),
    "bad bytes": lambda line: b"\xff\xfe\x00\x80 junk \xc3\n" + f"{line}\n".encode(),
    "long lines": lambda line: b'{"body": "' + b"x" * 60_000 + b'"}\n' + f"{line}\n".encode(),
}


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("path", CASES, ids=identifier)
def test_figures(path: Path, disguise: str) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    text = path.with_suffix(".log").read_text(encoding="utf-8")
    exchanges, log = build(text, case["exchanges"], DISGUISES[disguise])
    found = get(path.parts[-3]).parse_trial(exchanges, log)
    assert len(found) == len(case["counters"])
    for counters, expected in zip(found, case["counters"], strict=True):
        compare(counters, expected)


@pytest.mark.parametrize("path", CASES, ids=identifier)
def test_what_the_server_shows(path: Path) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    lines = path.with_suffix(".log").read_text(encoding="utf-8").splitlines()
    log = "".join(f"\x1b[32m{line}\x1b[0m\r\n" for line in lines if not line.startswith("@@"))
    engine = get(path.parts[-3])
    if "memory" in case:
        assert engine.memory_mib(log) == pytest.approx(case["memory"])
    if applied := case.get("applied"):
        shown = engine.applied(applied["knobs"], applied["speculative"], {}, applied["slots"], log)
        assert shown == applied["shown"]
    if judged := case.get("classify"):
        seen = engine.classify(log, judged["exit_code"])
        assert seen is not None
        assert str(seen[0]) == judged["kind"]
        assert judged["says"] in seen[1]
    else:
        assert engine.classify(log, None) is None


@pytest.mark.parametrize("path", CASES, ids=identifier)
def test_a_log_cut_anywhere_gives_the_same_figure_or_none(path: Path) -> None:
    """Cut in the middle of lines too. Sums over steps may be smaller; clocks and token counts are never other ones."""
    case = json.loads(path.read_text(encoding="utf-8"))
    text = path.with_suffix(".log").read_text(encoding="utf-8")
    exchanges, log = build(text, case["exchanges"], DISGUISES["plain"])
    engine = get(path.parts[-3])
    whole = engine.parse_trial(exchanges, log)
    for end in range(0, len(log), 37):
        cut = engine.parse_trial([replace(one, log_start=min(one.log_start, end)) for one in exchanges], log[:end])
        for counters, full in zip(cut, whole, strict=True):
            if counters.timing_source == full.timing_source and "coarse_clock" not in full.flags:
                assert counters.decode_ms in (None, full.decode_ms)
            assert counters.output_tokens in (None, full.output_tokens)
            assert (
                counters.verify_steps is None
                or full.verify_steps is None
                or (counters.verify_steps <= max(full.verify_steps, full.decode_tokens or 0))
            )


def test_every_dialect_has_a_golden_log() -> None:
    found = {path.parent.relative_to(GOLDEN).as_posix() for path in CASES}
    assert found >= {
        "beellama/A1", "beellama/A2", "beellama/B1", "beellama/B2", "lucebox/G0", "lucebox/G1", "lucebox/G2",
        "lucebox/G3", "vllm/counters", "vllm/request-clock", "vllm/request-acceptance", "sglang/counters",
        "sglang/request-acceptance", "attach/servers",
    }  # fmt: skip
