"""Words of pages and figures in one language. Imports `errors` and the tables `texts_en`, `texts_zh`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dflash_sweep.errors import ConfigError
from dflash_sweep.report import texts_en, texts_zh

TABLES: dict[str, dict[str, str]] = {"en": texts_en.TEXTS, "zh": texts_zh.TEXTS}


@dataclass(frozen=True, slots=True)
class Texts:
    """Looks a text up by key and fills its fields in. Raises KeyError for an unknown key: that is a defect of ours."""

    lang: str

    def __call__(self, key: str, **fields: Any) -> str:
        return TABLES[self.lang][key].format(**fields)

    def has(self, key: str) -> bool:
        return key in TABLES[self.lang]


def role_name(texts: Texts, role: str, *, speculative: bool) -> str:
    """What a run was made for. A canary is plain decoding, or the best candidate at that time measured again."""
    return texts("role.canary_best" if speculative and role == "canary" else f"role.{role}")


def texts_for(lang: str) -> Texts:
    """The words of a language. Raises ConfigError for one that is not there."""
    if lang not in TABLES:
        raise ConfigError(f"report.lang: {lang!r} is not a language of reports; allowed: {', '.join(sorted(TABLES))}")
    return Texts(lang)
