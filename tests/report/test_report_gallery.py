"""The gallery of figures: made from studies, complete, and each picture says where its numbers come from."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_sweep.errors import ConfigError
from dflash_sweep.report import gallery, style
from dflash_sweep.report.figures import FIGURES
from dflash_sweep.report.material import collect

DOCS = Path(__file__).resolve().parents[2] / "docs"
Builder = Callable[..., Any]


def test_every_figure_has_a_caption() -> None:
    assert list(gallery.LOOK_FOR) == list(FIGURES)


def test_each_figure_comes_from_the_first_study_that_holds_it(
    build_study: Builder, build_trials: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style, "rendered", lambda figure, suffix: b"picture")
    small = collect(build_study(name="small"), build_trials(3, turns=1), ())
    full = collect(build_study(name="full"), build_trials(20, turns=2), ())
    page = gallery.write([small, full], tmp_path).read_text()
    assert "EMULATED: study `small`, 3 trials." in page
    assert "EMULATED: study `full`, 20 trials." in page
    for target in re.findall(r"\]\((img/[^)]+)\)", page):
        assert (tmp_path / target).read_bytes() == b"picture"


def test_unknown_study_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="study 'none' is not stored"):
        gallery.read("none", f"sqlite:///{tmp_path / 'x.db'}")


def test_gallery_in_the_docs_is_complete_and_labelled() -> None:
    page = (DOCS / "gallery.md").read_text()
    sections = page.split("\n## ")[1:]
    assert len(sections) == len(FIGURES)
    for section in sections:
        (target,) = re.findall(r"!\[[^]]*\]\(([^)]+)\)", section)
        assert (DOCS / target).stat().st_size > 10_000
        assert re.search(r"^(EMULATED|IMPORTED|MEASURED): study `", section, re.MULTILINE)
