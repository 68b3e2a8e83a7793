"""Reports of a study: pages, figures, machine-readable findings. Heavy libraries are loaded when one is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash_sweep.records import StoredTrial, StudyInfo, Verdict

__all__ = ["winner_command", "write"]


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


def winner_command(
    study: StudyInfo, trials: Sequence[StoredTrial], verdicts: Sequence[Verdict] | None = None
) -> str | None:
    """The command line that the answer advises (the winner's, or plain decoding's where that wins); else None."""
    from dflash_sweep.report.answer import answer, command_line, launch_trial
    from dflash_sweep.report.material import collect
    from dflash_sweep.report.texts import texts_for

    material = collect(study, trials, verdicts)
    found = answer(material, texts_for("en"))
    trial = launch_trial(found.run, material.stored) if found.is_advice else None
    return command_line(trial) if trial is not None else None
