"""Prints docs/metrics.md from the tables in `metrics` and `figures`: `python -m dflash_sweep.metrics_table`.

Imports `metrics`, `figures`, `sanity`, `turn_marks`. A test keeps the page current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from dflash_sweep import figures, metrics, turn_marks

_HEAD = """\
# Metrics

This page is printed from the program's own tables (`python -m dflash_sweep.metrics_table > docs/metrics.md`); a test
fails when it is out of date.

Rules that hold for all of them:

- A figure that cannot be known is empty, never 0, and comes with the reason why.
- Tokens come from the server's own counts. Chunks of a stream are never counted as tokens: with speculation one chunk
  holds a burst of them.
- Everything a rate is made of is stored raw, and the rate is made by the one formula given here. A rate printed by a
  server is kept beside it (`server_tps_raw`) and never used.
- Over several turns a rate is the sum of its numerators over the sum of its denominators, never a mean of rates.
- Only counted turns enter: complete, finished as expected, from the launched process, long enough, not repeating
  themselves, and not warm-up.
- Times of the client are integer nanoseconds of one monotonic clock.
- Clock "server": the engine's adapter takes time and counts from the answer's JSON or the log and says which
  (`timing_source`: json, log, or client where the engine has no clock of its own).

## Metrics

Better: ↑ higher, ↓ lower, – tells something but is no objective. Scope: of a turn, pooled over turns, or both.
"""

_EMPTY = """
## When a figure is empty

One turn without a needed count or time makes the pooled figure empty too: a partial sum would pose as the whole.
"""

_STAGES = """
## Stages of a verify step

In milliseconds per verify step. The stages marked with Σ add up to `step_ms`; a stage that an engine does not print is
empty, and its time is then in `other_ms` or in a neighbour, as the engine's page says.
"""

_COUNTERS = """
## Counters behind them

| name | meaning |
|---|---|
| `output_tokens` | tokens of the answer, by the server's usage |
| `decode_tokens` | tokens produced by decode steps: one less than `output_tokens` where the first comes from prefill |
| `decode_ms` | time of the decode steps only |
| `prompt_tokens`, `cached_tokens` | tokens of the prompt; those of them that came from the prompt cache |
| `verify_steps` | decode steps in which the target model checked drafts; `steps_source` says printed or derived |
| `draft_tokens` | proposed tokens counted for acceptance, anchor excluded; `acceptance_kind`: chain or tree nodes |
| `accepted_draft_tokens` | proposed tokens that were kept; never counts the target's own token |
| `acceptance_histogram` | steps per number of accepted drafts; empty if the engine does not print it, never made up |

## Why a turn does not count

| reason | meaning |
|---|---|
| `connect`, `disconnected`, `timeout` | no connection; it broke before any text; no answer in time |
| `http_error`, `server_error` | the server refused; an error came inside the stream |
| `no_stream`, `bad_json` | the answer was not streamed; an event was no JSON object |
| `truncated`, `cancelled` | the stream ended without a finish reason; we broke it off |
| `no_finish`, `unexpected_finish` | no finish reason, or one that is neither stop, length nor tool calls |
| `foreign_process` | the answer did not come from the process that the trial launched |
| `no_token_count`, `no_decode_time` | a count or a time that decode_tps needs is missing |
| `too_few_tokens` | fewer decode tokens than `policy.min_decode_tokens` |
| `degenerate_output` | the text repeats itself: fast for the wrong reason |
"""

_MARKS = """
## Marks on turns

A mark does not take a turn out; it says in which way it did not go as the policy promised.

| mark | meaning |
|---|---|
"""

MARKS: tuple[tuple[str, str], ...] = (
    (turn_marks.CACHE_NOT_COLD, "a prompt that no earlier turn shares a beginning with was found in the prompt cache"),
    (turn_marks.CACHE_NOT_USED, "a turn that goes on from the one before found less than half of it in the cache"),
    (turn_marks.CACHE_USED_THOUGH_OFF, "prompt tokens came from the cache though the policy turns it off"),
    (turn_marks.PROMPT_SHRUNK, "the prompt has fewer tokens than that of the turn it goes on from"),
    (turn_marks.THROTTLED, "the device was seen to be slowed down (heat, a limit, a fallen clock) while the turn ran"),
    (
        turn_marks.TTFT_FROM_TOOL_CALL,
        "the first text was a tool call's: a server holds it back until its head is parsed",
    ),
    ("history_restarted", "free-running: the recorded history was taken up again (a failed turn, a compaction)"),
    (
        "next_turn_skipped",
        "free-running: the server answered without a call, so the recorded next turn had no question",
    ),
    ("tool_result_missing", "free-running: a call that was not recorded got a fixed stand-in for its result"),
    ("tool_arguments_replaced", "free-running: arguments that are no JSON went into the history as {}"),
)

_BETTER = {"maximize": "↑", "minimize": "↓", "none": "–"}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _metric_row(metric: metrics.MetricDef) -> list[str]:
    source = figures.SOURCES.get(metric.name)
    clock = source.clock if source else "–"
    words = [metric.formula, metric.unit, _BETTER[metric.direction], metric.scope, clock, metric.note]
    return [f"`{metric.name}`", *words]


def _reason_rows() -> Iterable[list[str]]:
    """Reason → the metrics that are empty for it; each reason once."""
    names: dict[str, list[str]] = {}
    for name, source in figures.SOURCES.items():
        for _, reason in source.needs:
            names.setdefault(reason, []).append(f"`{name}`")
    for name, reason in figures.TOO_LITTLE.items():
        names.setdefault(reason, []).append(f"`{name}`")
    return ([reason, ", ".join(members)] for reason, members in names.items())


def page() -> str:
    """The whole page, Markdown, ending in a line end."""
    head = ("name", "formula", "unit", "better", "scope", "clock", "note")
    stages = [[f"`{stage.name}`", "Σ" if stage.in_sum else "", stage.meaning] for stage in metrics.STAGES]
    return "\n".join(
        [
            _HEAD,
            *_table(head, map(_metric_row, metrics.METRICS)),
            _EMPTY,
            *_table(("reason", "then empty"), _reason_rows()),
            _STAGES,
            *_table(("name", "Σ", "meaning"), stages),
            _COUNTERS + _MARKS + "\n".join(f"| `{name}` | {meaning} |" for name, meaning in MARKS),
            "",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(page())
