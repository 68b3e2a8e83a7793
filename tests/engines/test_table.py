"""docs/engines.md is what the adapters say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_sweep.engines import REGISTRY, get, table

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == table.page(), (
        "run: python -m dflash_sweep.engines.table docs/engines.md"
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_knob_and_option_has_a_row(name: str) -> None:
    section = table.section(get(name))
    for knob in (*get(name).knobs, *get(name).options):
        assert f"| `{knob.name}` | " in section
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert all(row.replace("\\|", "").count("|") in (9, 7) for row in rows), "a cell broke its row"


def test_the_page_can_be_written_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main([str(tmp_path / "page.md")]) == 0
    assert table.main([]) == 0
    assert capsys.readouterr().out == (tmp_path / "page.md").read_text(encoding="utf-8")
