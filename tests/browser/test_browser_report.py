"""The HTML report in a browser, opened from the disk: it sorts, filters, shows its figures, and needs no network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from dflash_sweep import report
from dflash_sweep.records import Role
from fakes.shown_study import ShownStudy, out_of_memory

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    study = ShownStudy(f"sqlite:///{folder / 'studies.db'}", folder / "evidence", name="report")
    rows = [study.plain(), *(study.search(out_of_memory() if number == 3 else None) for number in range(11))]
    for _ in range(2):
        study.confirm(0, rows[1].knobs)
        study.plain(Role.CONFIRM)
    info = study.save("finished", confirmed_candidate=0)
    report.write(info, study.store.trials("report"), folder / "report", formats=("svg",))
    study.close()
    return folder / "report" / "findings.html"


@pytest.fixture
def opened(page: Page, findings: Path) -> Iterator[Page]:
    """The report, opened from the disk; any request of it fails the test."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(findings.as_uri())
    yield page
    assert [url for url in asked if not url.startswith(("data:", findings.as_uri()))] == []


def column(page: Page, place: int) -> list[str]:
    cells = page.locator(f"#all-rows tbody tr td:nth-child({place + 1})")
    return [text.strip() for text in cells.all_text_contents()]


def headings(page: Page) -> list[str]:
    return page.locator("#all-rows thead th").all_text_contents()


def test_every_figure_is_inside_and_drawn(opened: Page) -> None:
    images = opened.evaluate(
        "Array.from(document.images).map(image => [image.src.slice(0, 11), image.complete, image.naturalWidth])"
    )
    assert len(images) >= 8
    assert all(source == "data:image/" and complete and width > 0 for source, complete, width in images)


def test_every_column_sorts_by_its_numbers_both_ways(opened: Page) -> None:
    names = headings(opened)
    numeric = opened.locator("#all-rows thead th").evaluate_all("all => all.map(th => th.classList.contains('r'))")
    for place, name in enumerate(names):
        button = opened.locator(f"#all-rows thead th:nth-child({place + 1}) button")
        expect(button).to_be_enabled()
        button.click()
        first = column(opened, place)
        button.click()
        second = column(opened, place)
        header = opened.locator(f"#all-rows thead th:nth-child({place + 1})")
        assert header.get_attribute("aria-sort") in ("ascending", "descending")
        assert opened.locator("#all-rows thead th[aria-sort]").count() == 1
        filled = [[text for text in texts if text != "—"] for texts in (first, second)]
        for texts in (first, second):  # what is not known comes last, whichever way
            assert texts == [text for text in texts if text != "—"] + [text for text in texts if text == "—"], name
        if numeric[place]:
            # the largest first, then the smallest: "4/4" counts as 4
            values = [[float(text.partition("/")[0]) for text in texts] for texts in filled]
            assert values[0] == sorted(values[0], reverse=True), name
            assert values[1] == sorted(values[1]), name
        else:
            assert filled[0] == sorted(filled[0], key=str.casefold) or len(set(filled[0])) > 5, name


def test_intervals_and_factors_sort_by_their_first_number(opened: Page) -> None:
    table = opened.locator("table.sortable").first
    names = table.locator("thead th").all_text_contents()
    for name in ("95 % interval", "× plain"):
        place = names.index(name) + 1
        table.locator(f"thead th:nth-child({place}) button").click()
        cells = table.locator(f"tbody td:nth-child({place})").all_text_contents()
        known = [float(cell.strip().lstrip("[").split("×")[0].split(",")[0]) for cell in cells if cell.strip() != "—"]
        assert known == sorted(known, reverse=True)
        assert known


def test_a_button_can_be_reached_and_pressed_from_the_keyboard(opened: Page) -> None:
    button = opened.locator("#all-rows thead th").nth(3).locator("button")
    button.focus()
    opened.keyboard.press("Enter")
    expect(opened.locator("#all-rows thead th").nth(3)).to_have_attribute("aria-sort", "descending")


def test_rows_can_be_filtered(opened: Page) -> None:
    opened.get_by_placeholder("show only rows").fill("out_of_memory search")
    shown = opened.locator("#all-rows tbody tr:visible")
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text("CUDA error")


def test_a_link_to_trials_leads_to_their_row(opened: Page) -> None:
    link = opened.locator("a[href^='#trial-']").last
    link.click()
    expect(opened.locator(link.get_attribute("href") or "")).to_be_in_viewport()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [800, 1400])
def test_it_fits_and_can_be_read(browser: Browser, findings: Path, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(findings.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert contrast(ink, paper) > 7  # the stricter level of the web's guidelines for text
    context.close()


def contrast(first: str, second: str) -> float:
    """WCAG 2's contrast of two rgb(…) colours: (lighter + 0.05) / (darker + 0.05) of their relative luminance."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)
