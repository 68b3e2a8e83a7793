"""The dashboard in a browser: a finished study, a running one, and a note that somebody edits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dflash_sweep import report
from dflash_sweep.records import Role
from dflash_sweep.showcase.curator import Curator
from dflash_sweep.showcase.publishing import publish
from dflash_sweep.store import Store
from dflash_sweep.watcher import Silent
from fakes.served import served
from fakes.shown_study import ShownStudy, out_of_memory

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a finished study with its report."""
    folder = tmp_path_factory.mktemp("finished")
    url = f"sqlite:///{folder / 'studies.db'}"
    study = ShownStudy(url, folder / "evidence", name="finished")
    rows = [study.plain(), *(study.search(out_of_memory() if number == 3 else None) for number in range(8))]
    for _ in range(2):
        study.confirm(0, rows[1].knobs)
        study.plain(Role.CONFIRM)
    info = study.save("finished", confirmed_candidate=0)
    findings = report.write(info, study.store.trials("finished"), folder / "report", formats=("svg",))
    study_id = publish(study.store, info, folder=folder / "artifacts", report_dir=findings.parent)
    study.close()
    with served(url, folder / "artifacts", study_id) as found:
        yield found


def plots(page: Page, title: str) -> int:
    """Drawn marks in the Plotly figure of that title."""
    return int(
        page.evaluate(
            """title => Array.from(document.querySelectorAll('.js-plotly-plot'))
                .filter(plot => plot.querySelector('.gtitle')?.textContent.includes(title))
                .reduce((sum, plot) => sum + plot.querySelectorAll('.point, path.point').length, 0)""",
            title,
        )
    )


def test_the_studys_page_shows_history_figures_and_files(page: Page, finished: str) -> None:
    page.goto(finished)
    expect(page.get_by_role("heading", name="History")).to_be_visible()
    history = page.locator("#plot-history")
    expect(history.locator(".scatterlayer .point").first).to_be_attached()
    # seven candidates have a figure, one ran out of memory
    assert history.locator(".scatterlayer .trace").first.locator(".point").count() == 7
    for title in ("Where a verify step's milliseconds go", "Speed against acceptance length"):
        expect(page.locator(".gtitle", has_text=title)).to_be_attached()
        assert plots(page, title) >= 4  # some of the seven have the same setting
        expect(page.locator(".gtitle", has_text=title)).to_contain_text("EMULATED")
    expect(page.get_by_text("findings.html")).to_be_visible()
    expect(page.get_by_text("plain decoding", exact=True).first).to_be_visible()


def test_the_note_says_what_the_report_says(page: Page, finished: str) -> None:
    page.goto(f"{finished}/note")
    expect(page.get_by_role("heading", name="Findings: finished — EMULATED")).to_be_visible()
    expect(page.get_by_role("heading", name="Verdict")).to_be_visible()
    expect(page.get_by_role("heading", name="Runs beside the search")).to_be_visible()
    expect(page.locator("table td", has_text="out_of_memory").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400  # nothing stretches the page


def test_a_trials_page_has_its_note_tags_and_files(page: Page, finished: str) -> None:
    page.goto(f"{finished}/trials?numbers=1")
    expect(page.get_by_role("heading", name="search #1 — EMULATED")).to_be_visible()
    expect(page.get_by_text("llama-server").first).to_be_visible()
    expect(page.get_by_text(re.compile("emulated")).first).to_be_visible()
    picture = page.locator("img[alt='stages.svg']").first
    expect(picture).to_be_visible()
    page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=picture.element_handle())
    for name in ("server.log", "turns.jsonl"):
        expect(page.get_by_text(name).first).to_be_visible()
    source = picture.get_attribute("src") or ""
    assert page.request.get(finished.partition("/dashboard")[0] + source).body().startswith(b"<svg")


def test_a_failed_trial_says_why(page: Page, finished: str) -> None:
    page.goto(f"{finished}/trials?numbers=3")
    expect(page.get_by_text("Failed: out_of_memory")).to_be_visible()
    expect(page.get_by_text("CUDA error: out of memory")).to_be_visible()


def test_links_of_the_note_lead_to_trials(page: Page, finished: str) -> None:
    page.goto(f"{finished}/note")
    page.locator("a[href*='/trials?numbers=3']").first.click()
    expect(page.get_by_role("heading", name="search #3 — EMULATED")).to_be_visible()


def test_a_running_study_is_shown_while_it_runs(page: Page, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    study = ShownStudy(url, tmp_path / "evidence", name="running")
    with Store(url) as store, Curator(Silent(), store, "running", folder=tmp_path / "artifacts") as curator:
        curator.phase("search", 5)
        study.watcher = curator
        study.plain()
        study.search()
        with served(url, tmp_path / "artifacts", study.study._study_id) as found:
            page.goto(f"{found}/note")
            expect(page.get_by_text("search, 1 of 5 runs")).to_be_visible()
            page.goto(f"{found}/trials?numbers=0")
            expect(page.get_by_role("heading", name="search #0 — EMULATED")).to_be_visible()
            study.search()  # the study goes on while the page is open
            page.goto(f"{found}/trials?numbers=1")
            expect(page.get_by_role("heading", name="search #1 — EMULATED")).to_be_visible()
            expect(page.locator("img[alt='stages.svg']").first).to_be_visible()
            page.goto(found)
            expect(page.locator("#plot-history .scatterlayer .point").nth(1)).to_be_attached()
