"""Faults on demand: what the emulated server can be told to do wrong, at launch or for one request. Imports `errors`.

A fault is `name` or `name:argument`; several are joined by commas.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_sweep.errors import ConfigError

LAUNCH_FAULTS: dict[str, str] = {
    "crash_before_ready": "aborts while loading (SIGABRT); argument: exit code instead",
    "crash_after_ready": "aborts in the middle of request number n (default 1)",
    "hang_at_start": "never becomes ready, never exits",
    "oom_at_load": "runs out of memory while loading and exits",
    "port_in_use": "cannot bind its port and exits",
    "unavailable": "health is ok, requests get 503 for n seconds (default 2) after the first one",
    "wrong_model": "serves, but says that it holds another model",
    "draft_inactive": "starts in ddtree mode and decodes plainly, without a word",
    "ignored_setting": "takes a setting (argument: its name) and works with the default",
    "survives_term": "ignores SIGTERM",
    "log_flood": "prints n MiB (default 1) to its log with every request",
}
REQUEST_FAULTS: dict[str, str] = {
    "crash": "aborts in the middle of the answer",
    "hang_mid_stream": "stops sending in the middle and keeps the connection open",
    "oom_in_decode": "runs out of memory while decoding: 200 with an answer that ends early, as the fork does",
    "slow_stream": "waits n ms (default 200) before every chunk",
    "garbage": "sends bytes that are no event stream in the middle",
    "split_utf8": "cuts multi-byte characters between network writes",
    "half_event": "ends the connection in the middle of an event",
    "unavailable_once": "answers this request with 503",
    "zero_drafts": "decodes plainly: no draft tokens in the timings",
    "empty_answer": "answers 200 without any token",
    "log_flood": "prints n MiB (default 1) to the log",
    "degenerate": "repeats one token",
    "error_event": "answers 200 and then sends an error event",
}


@dataclass(frozen=True, slots=True)
class Faults:
    """Parsed faults: name → argument (empty = default)."""

    active: dict[str, str]

    def has(self, name: str) -> bool:
        return name in self.active

    def number(self, name: str, default: float) -> float:
        """The argument as a number; the default where none is given."""
        text = self.active.get(name, "")
        return float(text) if text else default

    def text(self, name: str) -> str:
        return self.active.get(name, "")


NONE = Faults({})


def parse(text: str | None, where: str = "request") -> Faults:
    """Faults from `name[:argument],…`. `where` launch allows both kinds. Raises ConfigError, listing what there is."""
    allowed = REQUEST_FAULTS if where == "request" else {**LAUNCH_FAULTS, **REQUEST_FAULTS}
    active: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in (text or "").split(","))):
        name, _, argument = part.partition(":")
        if name not in allowed:
            raise ConfigError(f"emulator fault {name!r} is unknown; allowed: {', '.join(sorted(allowed))}")
        if argument and name != "ignored_setting" and not _is_number(argument):
            raise ConfigError(f"emulator fault {part!r}: the argument must be a number")
        active[name] = argument
    return Faults(active)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
