"""Published runs as rows: what was set, what came out, and what kind of row each is. Imports `setting`, `errors`.

Columns as in `data/castle-runs-001-113.csv`. An empty parameter means the default that was in force.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from dflash_sweep.emulator.setting import Setting, from_knobs
from dflash_sweep.errors import ConfigError

PROMPT_TOKENS = 20_000
"""The published runs' rendered agent prompt has about this many tokens."""

DEFAULT_TEMPERATURE = 1e-6
"""Proposal temperature in force until it became a parameter (the harness passed its sampling temperature of 0)."""

STAGES = ("pack", "draft", "topk", "exact")
_NEEDED = ("run", "status", "tps", "gen_tokens", "steps", "committed", "step_ms", "acceptance", "description")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run. Figures are None where the file has none (or a crash's zeros). `kind`: measured (counts in every
    figure), code_change, trace, memory_crash (out of memory), other_crash. `label` names its group of settings."""

    run: int
    status: str
    kind: str
    description: str
    setting: Setting | None
    gen_tokens: int | None = None
    steps: int | None = None
    committed: int | None = None
    acceptance_length: float | None = None
    tps: float | None = None
    end_to_end: bool = False
    step_ms: float | None = None
    stages_ms: dict[str, float] | None = None
    refused: str | None = None


def shipped() -> str:
    """Text of the data file that comes with the package."""
    return resources.files("dflash_sweep").joinpath("data", "castle-runs-001-113.csv").read_text("utf-8")


def read(path: str | Path | None = None) -> tuple[Row, ...]:
    """Rows of a file with the data file's columns; None = the shipped file. Raises ConfigError: unreadable, columns
    missing, or a value that is no number, naming line and column."""
    name = "the shipped data file" if path is None else str(path)
    try:
        text = shipped() if path is None else Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    table = csv.DictReader(text.splitlines())
    if missing := [column for column in _NEEDED if column not in (table.fieldnames or ())]:
        raise ConfigError(f"{name}: columns missing: {', '.join(missing)}; needed are those of castle-runs-001-113.csv")
    return tuple(_row(record, f"{name}, line {index}") for index, record in enumerate(table, start=2))


def _number(record: dict[str, str], column: str, where: str) -> float | None:
    text = (record.get(column) or "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{where}: {column}={text!r} is not a number") from None


def _row(record: dict[str, str], where: str) -> Row:
    def number(column: str) -> float | None:
        return _number(record, column, where)

    def positive(column: str) -> float | None:
        value = number(column)
        return value if value is not None and value > 0 else None

    setting, refused = _setting(record, where)
    steps, step_ms, acceptance = positive("steps"), positive("step_ms"), positive("acceptance")
    committed = positive("committed")
    if committed is None and steps and acceptance:
        committed = round(steps * acceptance)  # the first runs' parser did not keep it
    tps, end_to_end = positive("tps"), positive("e2e_tps")
    crashed = record["status"] == "crash"
    stages = {stage: value for stage in STAGES if (value := number(f"{stage}_ms")) is not None}
    tokens = positive("gen_tokens")
    return Row(
        run=int(number("run") or 0),
        status=record["status"],
        kind=_kind(record, crashed),
        description=record["description"],
        setting=setting,
        refused=refused,
        gen_tokens=None if tokens is None else int(tokens),
        steps=None if steps is None else int(steps),
        committed=None if committed is None else int(committed),
        acceptance_length=None if crashed else acceptance,
        tps=None if crashed else tps,
        end_to_end=tps is not None and tps == end_to_end,
        step_ms=None if crashed else step_ms,
        stages_ms=None if crashed else stages,
    )


def _kind(record: dict[str, str], crashed: bool) -> str:
    if crashed:
        return "memory_crash" if "out of memory" in record["description"] else "other_crash"
    if (record.get("trace") or "").strip() == "1":
        return "trace"
    return "code_change" if (record.get("code_change") or "").strip() == "1" else "measured"


def _setting(record: dict[str, str], where: str) -> tuple[Setting | None, str | None]:
    """(what the run was launched with, why the server refuses it). (None, None): the row names no setting."""
    values: dict[str, Any] = {}
    for column in ("target_feat_ctx", "budget", "block_size", "top_k", "draft_gpu_layers", "n_ctx", "n_batch",
                   "n_ubatch", "tree_rows", "chain_depth_cap"):  # fmt: skip
        value = _number(record, column, where)
        values[column] = None if value is None else int(value)
    if values["budget"] is None:
        return None, None
    temperature = _number(record, "proposal_temp", where)
    kv_type = (record.get("kv_type") or "q4_0").strip()
    flash = (record.get("flash_attn") or "1").strip() != "0"
    batched = any((record.get(column) or "").strip() == "1" for column in ("fast_rollback", "fast_batched"))
    defaults = {"n_ctx": 65536, "n_batch": 512, "n_ubatch": 512}
    setting = from_knobs(
        {**defaults, **{name: value for name, value in values.items() if value is not None}},
        proposal_temp=DEFAULT_TEMPERATURE if temperature is None else temperature,
        chain_seed=(record.get("chain_seed") or "1").strip() != "0",
        cache_type_k=kv_type,
        cache_type_v=kv_type,
        flash_attn="on" if flash else "off",
        verifier="fast_batched" if batched else "exact",
        fast_rollback=(record.get("fast_rollback") or "").strip() == "1",
        profile=(record.get("profile") or "1").strip() != "0",
    )
    return setting, refusal(setting) or unusable(setting)


def refusal(setting: Setting) -> str | None:
    """Why a server would not start with this setting whatever its memory, in words; None if it would."""
    if setting.flash_attn == "off" and setting.kv_bits_per_element < 16:
        return "a quantised V cache needs flash attention"
    return None


def unusable(setting: Setting) -> str | None:
    """Why a server that runs with this setting is of no use, in words; None if it is."""
    if "tq3_0" in (setting.cache_type_k, setting.cache_type_v):
        return "KV type tq3_0: the output differs from plain decoding at once"
    return None
