"""The files one trial leaves behind: what was started, the log, the turns, the readings, the result. Imports `records`.

Nobody else joins these paths. Every file is written under another name first and then renamed, so that a reader never
finds half of one; `launch.json` is there before the server is, `result.json` when the trial is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dflash_sweep.errors import StorageError
from dflash_sweep.records import TrialResult, TurnRecord

SECRET_WORDS = ("key", "secret", "password", "token")
HIDDEN = "(hidden)"

_Record = TypeVar("_Record")


def without_secrets(values: dict[str, Any]) -> dict[str, Any]:
    """A copy in which values are hidden whose names end in a word for a secret (api_key, HF_TOKEN …)."""
    return {
        name: HIDDEN if value is not None and name.lower().rpartition("_")[2] in SECRET_WORDS else value
        for name, value in values.items()
    }


@dataclass(frozen=True, slots=True)
class TrialFiles:
    """Paths of one trial's evidence, all in `folder`."""

    folder: Path

    @property
    def launch(self) -> Path:
        return self.folder / "launch.json"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def shared_log(self) -> Path:
        """Log of a server that serves several trials; each one's `log` holds its own share."""
        return self.folder / "server-shared.log"

    @property
    def turns(self) -> Path:
        return self.folder / "turns.jsonl"

    @property
    def telemetry(self) -> Path:
        return self.folder / "telemetry.jsonl"

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def traceback(self) -> Path:
        return self.folder / "traceback.txt"

    def write_launch(self, content: dict[str, Any]) -> None:
        self._write(self.launch, msgspec.json.format(msgspec.json.encode(content), indent=2))

    def write_log(self, log: bytes) -> None:
        self._write(self.log, log)

    def write_turns(self, turns: Iterable[TurnRecord]) -> None:
        self._write(self.turns, _lines(turns))

    def write_telemetry(self, samples: Iterable[Any]) -> None:
        self._write(self.telemetry, _lines(samples))

    def write_traceback(self, text: str) -> None:
        self._write(self.traceback, text.encode())

    def write_result(self, result: TrialResult) -> None:
        self._write(self.result, msgspec.json.encode(result))

    def read_result(self) -> TrialResult:
        """Raises StorageError, naming the file, where it is missing or not a result of this version."""
        return _read(self.result, TrialResult)

    def _write(self, path: Path, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".new")
        draft.write_bytes(content)
        draft.replace(path)


def _lines(records: Iterable[Any]) -> bytes:
    rows: Sequence[bytes] = [msgspec.json.encode(record) for record in records]
    return b"".join(row + b"\n" for row in rows)


def _read(path: Path, kind: type[_Record]) -> _Record:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise StorageError(f"{path}: not a trial's result of this version: {error}") from error
