"""Writes a study's report: findings.md, findings.json, findings.html, results.csv and the figures.

Imports `records`, `errors` and the other modules of `report`. Every file is written beside its place and
then moved over it, so that a reader never sees half of one; figures that a new report no longer has are removed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dflash_sweep.errors import ConfigError
from dflash_sweep.records import StoredTrial, StudyInfo, Verdict
from dflash_sweep.report import style
from dflash_sweep.report.answer import Answer, answer
from dflash_sweep.report.figures import FIGURES, draw_all
from dflash_sweep.report.findings_json import findings_json
from dflash_sweep.report.html import Renderer as HtmlRenderer
from dflash_sweep.report.markdown import Renderer
from dflash_sweep.report.material import Material, collect
from dflash_sweep.report.page import findings
from dflash_sweep.report.results_csv import results_csv
from dflash_sweep.report.rows_table import rows_table
from dflash_sweep.report.texts import Texts, texts_for

FORMATS = ("png", "svg")
FIGURE_FOLDER = "figures"


def replace_file(path: Path, content: bytes) -> None:
    """Write beside `path`, then move over it: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        beside.chmod(0o644)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _checked(formats: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ConfigError(f"report.formats: {list(formats)} is not allowed: one or both of {', '.join(FORMATS)}")
    return tuple(name for name in FORMATS if name in formats)


def _html(
    material: Material,
    found: Answer,
    texts: Texts,
    pictures: dict[str, dict[str, bytes]],
    server_command: str | None,
    *,
    captions: bool,
) -> str:
    page = findings(material, found, texts, pictures, server_command, full=True, captions=captions)
    hints = {name: texts(f"hint.{name}") for name in ("sort", "filter")}
    return HtmlRenderer(pictures).render(page, rows_table(material, texts), hints)


def write(
    study: StudyInfo,
    trials: Sequence[StoredTrial],
    out_dir: Path,
    *,
    lang: str = "en",
    formats: Sequence[str] = FORMATS,
    server_command: str | None = None,
    verdicts: Sequence[Verdict] | None = None,
) -> Path:
    """Write the whole report into `out_dir` and return the path of findings.md.

    `verdicts` None = the rows are judged here. `server_command` replaces the command line under "What to run now".
    Raises ConfigError for an unknown language or picture format, or a folder that cannot be written.
    """
    texts, chosen = texts_for(lang), _checked(formats)
    in_figures = texts if lang == "en" or style.cjk_font() is not None else texts_for("en")
    material = collect(study, trials, verdicts)
    found = answer(material, texts)
    pictures = draw_all(material, in_figures, chosen)
    paths = {name: {suffix: f"{FIGURE_FOLDER}/{name}.{suffix}" for suffix in pictures[name]} for name in pictures}
    listed = {name: sorted(files.values()) for name, files in paths.items()}
    renderer = Renderer({name: files.get("png") or files["svg"] for name, files in paths.items()}, "results.csv")
    captions = in_figures != texts
    short = findings(material, found, texts, pictures, server_command, full=False, captions=captions)
    contents = {
        **{paths[name][suffix]: data for name, files in pictures.items() for suffix, data in files.items()},
        "results.csv": results_csv(material.trials),
        "findings.json": findings_json(material, found, texts, server_command, listed),
        "findings.md": renderer.render(short).encode(),
        "findings.html": _html(material, found, texts, pictures, server_command, captions=captions).encode(),
    }
    try:
        for name, content in contents.items():
            replace_file(out_dir / name, content)
        for stale in (out_dir / FIGURE_FOLDER / f"{name}.{suffix}" for name in FIGURES for suffix in FORMATS):
            if f"{FIGURE_FOLDER}/{stale.name}" not in contents:
                stale.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"report.dir: {out_dir} cannot be written: {error.strerror}") from error
    return out_dir / "findings.md"
