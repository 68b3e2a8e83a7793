"""What a shell may offer while an override is typed. Imports `app` and `settings` inside, so that --help is quick."""

from __future__ import annotations

from collections.abc import Sequence


def overrides(incomplete: str, before: Sequence[str] = ()) -> list[str]:
    """Words that begin with what is typed so far: keys, groups, and after "group=" the names in the group.

    `before`: the words before it. bash cuts a word at "=" and wants only what comes after it.
    """
    if incomplete == "" and before and before[-1].removeprefix("+") in _groups():  # the sign itself was the word
        return _values(before[-1], "")
    if before[-1:] == ["="] and len(before) > 1:
        return _values(before[-2], incomplete)
    name, equals, value = incomplete.partition("=")
    return [f"{name}={choice}" for choice in _values(name, value)] if equals else _names(incomplete)


def _groups() -> list[str]:
    from dflash_sweep.help_page import config_dir

    return sorted(path.name for path in config_dir().iterdir() if path.is_dir())


def _values(group: str, begun: str) -> list[str]:
    from dflash_sweep import app

    name = group.removeprefix("+")
    known = app.choices(name, app.user_folder()) if name in _groups() else ()
    return [choice for choice in known if choice.startswith(begun)]


def _names(begun: str) -> list[str]:
    from dflash_sweep import settings

    groups = _groups()
    words = ["+study=" if group == "study" else f"{group}=" for group in groups]
    words += [f"{key}=" for key in settings.key_names() if key not in groups]
    return [word for word in words if word.startswith(begun)]
