"""Reports of a study: pages, figures, machine-readable findings. Heavy libraries are loaded when one is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash_sweep.records import StoredTrial, StudyInfo, Verdict

__all__ = ["write"]


def write(
    study: StudyInfo,
    trials: Sequence[StoredTrial],
    out_dir: Path,
    *,
    lang: str = "en",
    formats: Sequence[str] = ("png", "svg"),
    server_command: str | None = None,
    verdicts: Sequence[Verdict] | None = None,
) -> Path:
    """Write findings.md, findings.json, results.csv and figures/ into `out_dir`; returns the path of findings.md.

    `lang`: en or zh. `formats`: png, svg or both. `server_command` replaces the command line of the page. `verdicts`
    None = the rows are judged here. The same rows give the same files. Raises ConfigError for an unknown language or
    format, or a folder that cannot be written.
    """
    from dflash_sweep.report import writer

    return writer.write(
        study, trials, out_dir, lang=lang, formats=formats, server_command=server_command, verdicts=verdicts
    )
