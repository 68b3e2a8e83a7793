"""Lucebox's log → one turn's counters: summaries, effective mode, stage profiles. Imports `engines.*`, `records`.

One worker serves one request at a time, so every line between a request's START and DONE is its own; both carry the
response id. Formats: server sources of generations G0 to G3. Matchers search, they do not anchor: the two output
streams and a container put prefixes before the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_sweep.engines import timings
from dflash_sweep.engines.logtext import LogLine, Places, clean_lines, number, pairs
from dflash_sweep.records import Exchange, StageTime, TurnCounters

_EVENT = re.compile(r"\[server\]\s+chat (START|CACHE|DONE) (\S+)|\bchat (START|DONE) (\S+)")
_SPEC = re.compile(
    r"\[(?:spec-decode|laguna-spec|hybrid-spec|gemma4-spec)\]\s+tokens=(\d+)\s+time=([\d.]+)\s*s\s+speed=[\d.]+\s*tok/s"
    r"\s+steps=(\d+)\s+accepted=(\d+)/(\d+)"
)
_AR = re.compile(r"\[ar-decode\]\s+tokens=(\d+)\s+time=([\d.]+)\s*s")
_POLICY = re.compile(r"\[chain-rollback-policy\].*\baccept_hist=(\S+)")
_STEP_PROFILE = re.compile(r"\[step-prof\] per-step ms: (.*?)\(steps=(\d+)\)")
_TIMING_HEAD = re.compile(r"\[timing\] per-step averages over (\d+) steps \(ms\):")
_TIMING_ROW = re.compile(r"(?:^|\s)\s([a-z_]+)\s+([\d.]+)$")
_TIMING_END = re.compile(r"-----\s*sum\s+([\d.]+)")
_GENERATED = re.compile(
    r"\[dflash\] generated (\d+) tokens in ([\d.]+) s|\[target-split-dflash\] decode tokens=(\d+) time=([\d.]+)"
)
_DRAFT_STEPS = re.compile(r"\[(?:target-split-)?dflash\] (\d+) draft steps, accepted=(\d+)/(\d+)")
_NOTES = (
    (re.compile(r"\[degenerate-decode\]"), "degenerate_output"),
    (re.compile(r"switching to AR|switching remaining"), "late_plain_decoding"),
    (re.compile(r"retrying with AR decode"), "plain_retry"),
    (re.compile(r"falling back to restore\+replay|using legacy draft path"), "degraded_path"),
    (re.compile(r"kvflash layout not identity-contiguous"), "degraded_path"),
    (re.compile(r"tool_call parse failed"), "tool_call_unreadable"),
    (re.compile(r"client disconnected"), "client_gone"),
)

STEP_PROFILE_STAGES: Mapping[str, str] = {
    "draft": "draft_ms", "dwait": "draft_ms", "heads": "topk_ms", "build": "build_ms", "verify": "verify_ms",
    "commit": "replay_ms", "other": "other_ms",
}  # fmt: skip
"""Stages of a laguna step profile under our names; waiting for the draft is drafting."""

TIMING_STAGES: Mapping[str, str] = {
    "draft_build": "draft_ms", "draft_copyfeat": "draft_ms", "draft_set": "draft_ms", "draft_compute": "draft_ms",
    "draft_bridge": "draft_ms", "draft_logits": "topk_ms", "snapshot_ssm": "snapshot_ms", "verify_build": "verify_ms",
    "verify_set": "verify_ms", "verify_compute": "verify_ms", "verify_logits": "verify_ms", "accept": "accept_ms",
    "restore_ssm": "rollback_ms", "replay_build": "replay_ms", "replay_set": "replay_ms", "replay_compute": "replay_ms",
    "replay_logits": "replay_ms", "mirror_sync": "ingest_ms",
}  # fmt: skip
"""Stages of test_dflash's timing block under our names; reading the verify result back is verifying."""


@dataclass(slots=True)
class Segment:
    """The lines of one request."""

    response_id: str | None
    offset: int
    tokens: int | None = None
    decode_s: float | None = None
    steps: int | None = None
    accepted: int | None = None
    compared: int | None = None
    counts_anchor: bool = False
    ar_tokens: int | None = None
    ar_s: float | None = None
    histogram: dict[int, int] | None = None
    profile_steps: int | None = None
    profile: dict[str, float] = field(default_factory=dict)
    in_timing: bool = False
    done: dict[str, str] = field(default_factory=dict)
    done_rate: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def emitted(self) -> int | None:
        """Tokens of the whole answer: as the end of the request counts them, else as the one decode path does."""
        out = self.done.get("out", "")
        return int(out) if out.isdigit() else self.tokens if self.ar_tokens is None else self.ar_tokens

    @property
    def mode(self) -> str | None:
        """ar, mixed, chain, tree, tree+chain, spec (chain or tree: not told); None = nothing was decoded here."""
        if self.steps is None:
            return "ar" if self.ar_tokens is not None else None
        if self.ar_tokens is not None:
            return "mixed"
        if self.histogram is None:
            return "spec"
        chain_steps = sum(self.histogram.values())
        return "tree" if chain_steps == 0 else "chain" if chain_steps >= self.steps else "tree+chain"

    def stages(self) -> tuple[StageTime, ...]:
        """Totals over the profiled steps; other_ms is what wall time leaves where the profile does not print it."""
        if not self.profile or not self.profile_steps:
            return ()
        totals = {name: value * self.profile_steps for name, value in self.profile.items()}
        if "step_ms" not in totals and self.decode_s is not None:
            totals["step_ms"] = self.decode_s * 1000.0
            totals["other_ms"] = max(0.0, totals["step_ms"] - sum(self.profile.values()) * self.profile_steps)
        return tuple(StageTime(name=name, total_ms=round(value, 4)) for name, value in totals.items())


_RATE = re.compile(r"\bdecode=[\d.]+s\s*\(([\d.]+)\s*tok/s\)")


def _histogram(text: str) -> dict[int, int]:
    """`1:4,2:0,…,16+:3` → steps per accepted drafts; the printed lengths count the anchor, ours do not."""
    found: dict[int, int] = {}
    for part in text.split(","):
        length, _, steps = part.partition(":")
        if length.rstrip("+").isdigit() and steps.isdigit():
            found[int(length.rstrip("+")) - 1] = int(steps)
    return found


def _take_summary(segment: Segment, text: str) -> bool:
    """One decode summary line; True if it was one."""
    if spec := _SPEC.search(text):
        segment.tokens, segment.decode_s, segment.steps = int(spec[1]), number(spec[2]), int(spec[3])
        segment.accepted, segment.compared = int(spec[4]), int(spec[5])
    elif plain := _AR.search(text):
        segment.ar_tokens = (segment.ar_tokens or 0) + int(plain[1])
        segment.ar_s = (segment.ar_s or 0.0) + (number(plain[2]) or 0.0)
    elif policy := _POLICY.search(text):
        segment.histogram = _histogram(policy[1])
    elif generated := _GENERATED.search(text):
        segment.tokens, segment.decode_s = int(generated[1] or generated[3]), number(generated[2] or generated[4])
    elif steps := _DRAFT_STEPS.search(text):
        segment.steps, segment.accepted, segment.compared = int(steps[1]), int(steps[2]), int(steps[3])
        segment.counts_anchor = True
    else:
        return False
    return True


def _take_profile(segment: Segment, text: str) -> None:
    """One line of a stage profile, of either kind."""
    if step := _STEP_PROFILE.search(text):
        segment.profile_steps, segment.profile = int(step[2]), {}
        for name, value in pairs(step[1]).items():
            _add(segment, "step_ms" if name == "total" else STEP_PROFILE_STAGES.get(name), number(value))
    elif head := _TIMING_HEAD.search(text):
        segment.profile_steps, segment.profile, segment.in_timing = int(head[1]), {}, True
    elif segment.in_timing and _TIMING_END.search(text):
        segment.in_timing = False
    elif segment.in_timing and (row := _TIMING_ROW.search(text)):
        stage = TIMING_STAGES.get(row[1])
        if stage is None and "unknown_stage" not in segment.notes:
            segment.notes.append("unknown_stage")
        _add(segment, stage, number(row[2]))


def _add(segment: Segment, name: str | None, value: float | None) -> None:
    if name is not None and value is not None:
        segment.profile[name] = segment.profile.get(name, 0.0) + value


def _take(segment: Segment, text: str) -> None:
    if not _take_summary(segment, text):
        _take_profile(segment, text)
    for pattern, note in _NOTES:
        if note not in segment.notes and pattern.search(text):
            segment.notes.append(note)


def segments(lines: Sequence[LogLine]) -> list[Segment]:
    """Requests in order of their first line; lines outside any request are left out.

    A request without START (a log that begins in its middle) opens with its first decode line.
    """
    found: list[Segment] = []
    current: Segment | None = None
    for line in lines:
        event = _EVENT.search(line.text)
        if event is None:
            if current is None and ("-decode]" in line.text or "-spec]" in line.text or "[timing]" in line.text):
                current = Segment(None, line.offset)
                found.append(current)
            if current is not None:
                _take(current, line.text)
            continue
        kind, response_id = event[1] or event[3], event[2] or event[4]
        if kind == "START":
            current = Segment(response_id, line.offset)
            found.append(current)
        elif kind == "DONE":
            if current is None or current.response_id not in (None, response_id):
                current = Segment(response_id, line.offset)
                found.append(current)
            current.response_id, current.done = response_id, pairs(line.text)
            current.done_rate = number(rate[1]) if (rate := _RATE.search(line.text)) else None
            current = None
    return found


def _of_exchange(exchanges: Sequence[Exchange], found: Sequence[Segment], log_size: int) -> list[Segment | None]:
    """By response id; else by place in the log, if exactly one request without another owner stands there."""
    by_id = {segment.response_id: segment for segment in found if segment.response_id is not None}
    ids = [exchange.response_id for exchange in exchanges]
    times = Counter(ids)
    chosen: list[Segment | None] = [by_id.get(own) if own is not None and times[own] == 1 else None for own in ids]
    places = Places(exchanges, log_size)
    taken = {id(segment) for segment in chosen if segment is not None}
    by_place: dict[int | None, list[Segment]] = {}
    for one in found:
        if id(one) not in taken:
            by_place.setdefault(places.owner(one.offset), []).append(one)
    for index, segment in enumerate(chosen):
        inside = by_place.get(index, [])
        if segment is None and len(inside) == 1:
            chosen[index] = inside[0]
    return chosen


def _json_decode_ms(exchange: Exchange) -> tuple[float | None, float | None, float | None]:
    """(prefill_ms, decode_ms, tokens per second) of usage.timings, one decimal each. 0.0 stands for not known there."""
    usage = exchange.usage or {}
    times: Any = usage.get("timings")
    if not isinstance(times, Mapping):
        times = exchange.timings or {}
    figures = [timings.finite(times.get(name)) for name in ("prefill_ms", "decode_ms", "decode_tokens_per_sec")]
    prefill, decode, rate = (figure or None for figure in figures)
    return prefill, decode, rate


def _set_clock(draft: timings.Draft, segment: Segment | None, exchange: Exchange) -> None:
    """Decode time: the summary line (1 ms) if one path decoded the whole turn, else the JSON, else the client.

    `decode=` of the DONE line has a resolution of 0.1 s: its rate in brackets is the last resort, and flagged.
    """
    prefill, json_ms, rate = _json_decode_ms(exchange)
    coarse = (segment.done_rate or None) if segment is not None else None
    draft.prompt_ms, draft.server_tps_raw = prefill, rate if rate is not None else coarse
    mode = segment.mode if segment is not None else None
    if segment is not None and mode == "ar":
        timings.set_decode(draft, segment.ar_tokens, _ms(segment.ar_s), "log")
    elif segment is not None and mode is not None and mode != "mixed" and segment.tokens is not None:
        timings.set_decode(draft, segment.tokens, _ms(segment.decode_s), "log")
    else:
        timings.set_decode(draft, draft.output_tokens, json_ms, "json")
    if draft.timing_source is None and "too_few_tokens" not in draft.flags:
        timings.from_client_clock(draft, exchange)
    if draft.timing_source is None and coarse and draft.output_tokens:
        timings.set_decode(draft, draft.output_tokens, 1000.0 * draft.output_tokens / coarse, "log")
        draft.flag("coarse_clock")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000.0


def _set_drafts(draft: timings.Draft, segment: Segment, mode: str | None) -> str:
    """Draft counters; returns what they count. The printed pair counts the anchor in a chain and not in a tree."""
    if mode == "ar":
        draft.draft_tokens, draft.accepted_draft_tokens = 0, 0
        return "unknown"
    if segment.steps is None or segment.accepted is None or segment.compared is None:
        return "unknown"
    draft.draft_tokens, draft.accepted_draft_tokens = segment.compared, segment.accepted
    if mode == "chain" or segment.counts_anchor:
        draft.draft_tokens = max(0, segment.compared - segment.steps)
        draft.accepted_draft_tokens = max(0, segment.accepted - segment.steps)
    return "chain" if mode == "chain" else "unknown"


def _counters(exchange: Exchange, segment: Segment | None) -> TurnCounters:
    draft = timings.from_usage(exchange)
    if draft.output_tokens is None and segment is not None:
        draft.output_tokens = segment.emitted
    _set_clock(draft, segment, exchange)
    if segment is None:
        draft.flag("no_log_segment")
        return draft.counters()
    mode = segment.mode
    kind = _set_drafts(draft, segment, mode)
    if mode is not None:
        draft.flag(f"mode_{mode}")
    for note in segment.notes:
        draft.flag(note)
    effective = segment.done.get("effective_in", "")
    if effective.isdigit() and draft.prompt_tokens is not None and int(effective) < draft.prompt_tokens:
        # Compression read fewer tokens than the prompt has: prefill speed counts what was read.
        draft.flag("prompt_compressed")
        draft.prompt_tokens, draft.cached_tokens = int(effective), 0
    if segment.done.get("ok") == "false":
        draft.flag(f"server_error_{segment.done.get('error', 'unknown')}")
    timings.plausible(draft)
    speculative = mode not in (None, "ar")
    return draft.counters(
        verify_steps=segment.steps if speculative else None,
        steps_source="printed" if speculative else None,
        acceptance_kind=kind,
        acceptance_histogram=segment.histogram if mode == "chain" else None,
        stages=segment.stages() if speculative else (),
    )


def turn_counters(exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
    """One record per exchange, in order."""
    found = segments(list(clean_lines(log)))
    chosen = _of_exchange(exchanges, found, len(log))
    return tuple(_counters(exchange, segment) for exchange, segment in zip(exchanges, chosen, strict=True))
