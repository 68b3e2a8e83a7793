"""The configuration page is what the schema says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_sweep import settings, settings_table

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == settings_table.page(), (
        "run: python -m dflash_sweep.settings_table > docs/configuration.md"
    )


def test_every_key_is_on_the_page() -> None:
    page = settings_table.page()
    missing = [key for key in settings.key_names() if "." in key and f"`{key}`" not in page]
    assert missing == []


def test_a_key_without_a_meaning_is_refused() -> None:
    @dataclass
    class Bare:
        silent: int = 1

    with pytest.raises(ValueError, match=r"Bare\.silent has no comment"):
        settings_table.documented(Bare)
