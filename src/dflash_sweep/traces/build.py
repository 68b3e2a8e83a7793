"""From a file in any known format to a canonical trace, with an account of everything left out or changed.

Imports the importers, the normaliser, `canonical`, `records` and `errors`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_sweep.errors import TraceError
from dflash_sweep.records import Trace, TraceHeader
from dflash_sweep.traces.canonical import read, with_hash
from dflash_sweep.traces.changes import Change, summary
from dflash_sweep.traces.detect import by_name, detect, is_own_format
from dflash_sweep.traces.importers.base import SYSTEM_PROMPT, TOOL_SCHEMAS, Call, Format, Ledger
from dflash_sweep.traces.message_rules import replace_surrogates
from dflash_sweep.traces.normalise import NormaliseOptions, NothingToSend, normalise
from dflash_sweep.traces.sources import open_source
from dflash_sweep.traces.threads import in_time_order
from dflash_sweep.traces.turn_builder import SideFiles, TurnBuilder

__all__ = ["Imported", "SideFiles", "import_trace", "read_side_files"]

_OWN = "dflash-sweep"
_FAITHFUL = (SYSTEM_PROMPT, TOOL_SCHEMAS, "assistant_answers", "texts", "history", "compaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A trace and how it came about. `read` = `used` + sum of `skipped` (by reason), in records of the source.

    `dropped`: model calls that were read but cannot be replayed, by reason.
    """

    trace: Trace
    format: str
    read: int
    used: int
    skipped: dict[str, int]
    dropped: dict[str, int]
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """The account as lines of text."""
        skipped = [f"  skipped {count}: {reason}" for reason, count in sorted(self.skipped.items())]
        return (
            f"format {self.format}: {self.read} records read, {self.used} used, {sum(self.skipped.values())} skipped",
            *skipped,
            *(f"  left out {count}: {reason}" for reason, count in sorted(self.dropped.items())),
            *(f"  warning: {warning}" for warning in self.warnings),
            *(f"  changed: {line}" for line in summary(self.changes)),
            *(f"  lost: {loss}" for loss in self.trace.header.losses),
        )


def read_side_files(system: Path | None, tools: Path | None, *, infer_tools: bool = False) -> SideFiles:
    """The user's side files. Raises TraceError when one is missing or is not what its option takes."""
    text = None if system is None else _read(system, "--system")
    if text is not None and not text.strip():
        raise TraceError(f"--system {system}: empty; it takes the text of the system prompt")
    if tools is None:
        return SideFiles(system=text, infer_tools=infer_tools)
    try:
        value = json.loads(_read(tools, "--tools"))
    except ValueError as error:
        raise TraceError(f"--tools {tools}: not JSON: {error}") from None
    listed = value.get("tools") if isinstance(value, dict) else value
    if not isinstance(listed, list) or not listed:
        raise TraceError(f"--tools {tools}: takes a JSON array of tools, or an object with a key tools")
    return SideFiles(system=text, tools=tuple(listed), infer_tools=infer_tools)


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TraceError(f"{option} {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{option} {path}: cannot be read as UTF-8 text: {error}") from None


def import_trace(
    path: str | Path,
    *,
    format_name: str | None = None,
    side: SideFiles | None = None,
    options: NormaliseOptions | None = None,
    require_faithful: bool = False,
    name: str | None = None,
) -> Imported:
    """Read a file of any known format. Raises TraceError: unknown format, nothing usable, losses where none may be."""
    ledger = Ledger()
    source = open_source(path, ledger)
    if format_name is None and is_own_format(source):
        return _own(Path(path), options or NormaliseOptions())
    form = by_name(format_name) if format_name is not None else detect(source)
    builder = TurnBuilder(form, ledger, side or SideFiles(), options or NormaliseOptions())
    calls = in_time_order(form.read(source, ledger))
    turns = builder.turns(calls)
    if not turns:
        left_out = ledger.skipped + ledger.dropped
        reasons = "; ".join(f"{count} × {reason}" for reason, count in left_out.items()) or "no model calls in it"
        raise TraceError(f"{path}: read as {form.name}, but nothing can be replayed: {reasons}")
    builder.check_side_files_used(path)
    header = _header(name or Path(path).stem, form, calls, ledger)
    if require_faithful and (missing := [key for key in sorted(ledger.losses) if key in _FAITHFUL]):
        raise TraceError(f"{path}: not a faithful trace, {', '.join(missing)} missing; --system, --tools can help")
    return Imported(
        trace=with_hash(Trace(header=header, turns=turns)),
        format=form.name,
        read=ledger.read,
        used=ledger.used,
        skipped=dict(ledger.skipped),
        dropped=dict(ledger.dropped),
        changes=builder.changes,
        warnings=tuple(ledger.warnings),
    )


def _header(name: str, form: Format, calls: Sequence[Call], ledger: Ledger) -> TraceHeader:
    models = sorted({call.model for call in calls if call.model})
    return TraceHeader(
        name=replace_surrogates(name),
        source=f"imported from {form.title}",
        template_kwargs=replace_surrogates(_common([c.template_kwargs for c in calls], "template switch", ledger)),
        sampling=replace_surrogates(_common([c.sampling for c in calls], "sampling field", ledger)),
        content_kind="synthetic" if form.synthetic else "real",
        losses=tuple(f"{key}: {why}" for key, why in sorted(ledger.losses.items())),
        note=replace_surrogates(f"recorded with {', '.join(models)}") if models else None,
    )


def _common(settings: Sequence[dict[str, Any]], what: str, ledger: Ledger) -> dict[str, Any]:
    """The settings that all calls share; those that differ are listed and left out."""
    common: dict[str, Any] = {}
    for key in sorted({key for one in settings for key in one}):
        values = [json.dumps(one.get(key), sort_keys=True) for one in settings]
        if len(set(values)) == 1:
            common[key] = settings[0][key]
        else:
            ledger.warn(f"{what} {key} differs between calls and is not kept")
    return common


def _own(path: Path, options: NormaliseOptions) -> Imported:
    """A trace of this program, normalised again: for files edited by hand or recorded as they were sent."""
    trace, warnings = read(path)
    changes: dict[tuple[str, Change], None] = {}
    turns = []
    skipped: Counter[str] = Counter()
    for turn in trace.turns:
        try:
            done = normalise(turn.messages, turn.tools, turn.tool_choice, options)
        except NothingToSend as error:
            skipped[str(error)] += 1
            continue
        changes |= dict.fromkeys((turn.conversation, change) for change in done.changes)
        turns.append(replace(turn, messages=done.messages, tools=done.tools, tool_choice=done.tool_choice))
    if not turns:
        raise TraceError(f"{path}: nothing can be replayed: no turn has a user message")
    return Imported(
        trace=with_hash(replace(trace, turns=tuple(turns))),
        format=_OWN,
        read=len(trace.turns),
        used=len(turns),
        skipped=dict(skipped),
        dropped={},
        changes=tuple(change for _, change in changes),
        warnings=warnings,
    )
