"""Finds a file's format by its content, never by its name. Imports `importers`, `schema`, errors."""

from __future__ import annotations

from dflash_sweep.errors import TraceError
from dflash_sweep.traces.importers import FORMATS, Format
from dflash_sweep.traces.importers.base import Source
from dflash_sweep.traces.schema import FORMAT as OWN_FORMAT


def is_own_format(source: Source) -> bool:
    """Whether this is a trace of this program already."""
    return bool(source.records) and source.records[0].value.get("format") == OWN_FORMAT


def detect(source: Source) -> Format:
    """The format that recognises most records. Raises TraceError naming the formats when none recognises any."""
    scores = {name: form.recognises(source) for name, form in FORMATS.items()}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] == 0:
        raise TraceError(f"{source.path}: no known format; known are {known_formats()} (--format chooses one)")
    return FORMATS[best]


def by_name(name: str) -> Format:
    """A format by name. Raises TraceError naming the formats there are."""
    if name not in FORMATS:
        raise TraceError(f"no format {name!r}; known are {known_formats()}")
    return FORMATS[name]


def known_formats() -> str:
    return ", ".join(f"{name} ({form.title})" for name, form in FORMATS.items())
