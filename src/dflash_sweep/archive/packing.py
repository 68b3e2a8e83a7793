"""A study into one file. Imports `store`, `raw_rows`, `optuna_rows`, `originals`, `traces`, `report`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dflash_sweep import __version__, optuna_rows, originals, raw_rows, report, traces, upgrades
from dflash_sweep.archive.masking import Mask
from dflash_sweep.archive.members import FORMAT, FORMAT_VERSION, Writer, is_safe
from dflash_sweep.errors import ConfigError, StorageError, TraceError
from dflash_sweep.records import StudyInfo
from dflash_sweep.store import Store

HERE = "archive:"
"""Begins every path that leads into the archive itself; a reader puts its own folder there."""
EVIDENCE = "evidence"
_JSON_EVIDENCE = (".json", ".jsonl")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written: `left_out` says in words what could not, or was not to, be taken along."""

    path: Path
    trials: int
    members: int
    left_out: tuple[str, ...]


def export(
    store: Store,
    study: str,
    out: Path,
    *,
    evidence_bytes: int,
    home: str | None,
    launch_dir: Path,
    findings: bool = True,
) -> Exported:
    """Write a study to `out`.

    `evidence_bytes`: logs and other files of trials up to this size, unpacked; what goes beyond is left out, logs
    first. `home`: the folder that becomes ~ (see `masking`); None = names are kept. `launch_dir`: where relative trace
    paths begin, if the study does not say. `findings`: whether the report is made and taken along. Raises StorageError:
    no such study, or the file cannot be written.
    """
    info = originals.study_of(store, study)
    if not out.parent.is_dir():
        raise StorageError(f"{out}: there is no folder {out.parent}")
    packing = _Packing(store, info, Mask(home), launch_dir)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "program": f"dflash-sweep {__version__}",
        "schema": upgrades.head(),
        "study": info.name,
        "measurement": str(info.measurement),
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "names_hidden": home is not None,
        "left_out": packing.left_out,
    }
    with Writer(out, manifest) as writer:
        masked = packing.write(writer, evidence_bytes)
        if findings:
            packing.write_findings(writer, masked)
        manifest["trials"], manifest["traces"] = packing.trials, packing.trace_files
    return Exported(path=out, trials=packing.trials, members=len(writer.names), left_out=tuple(packing.left_out))


class _Packing:
    """One export under way."""

    def __init__(self, store: Store, info: StudyInfo, mask: Mask, launch_dir: Path) -> None:
        self._store, self._info, self._mask = store, info, mask
        self._launch_dir = Path(str(info.provenance.get("launch_dir") or launch_dir))
        self.left_out: list[str] = []
        self.trace_files: dict[str, str] = {}
        self.trials = 0

    def write(self, writer: Writer, evidence_bytes: int) -> StudyInfo:
        """Everything but the findings; gives the study as the archive has it."""
        info = self._info
        plain: dict[str, Any] = msgspec.to_builtins(info, str_keys=True)
        config, provenance = self._mask.data(plain.pop("config")), self._mask.data(plain.pop("provenance"))
        writer.add("study.json", _json(self._mask.data(plain)))
        writer.add("config.json", _json(config))
        writer.add("provenance.json", _json(provenance))
        folders: dict[str, Path] = {}
        writer.add_parts("trials.jsonl", self._rows(folders))
        candidates = optuna_rows.dump(self._store, info.name)
        if candidates is not None:
            writer.add("candidates.json", _json(self._mask.data(candidates)))
        if running := raw_rows.count_running(self._store, info.name):
            self.left_out.append(f"{running} trial(s) that have not finished")
        self._write_traces(writer)
        self._write_evidence(writer, folders, evidence_bytes)
        return msgspec.convert({**plain, "config": config, "provenance": provenance}, StudyInfo, str_keys=True)

    # ------------------------------------------------------------ rows

    def _rows(self, folders: dict[str, Path]) -> Iterator[bytes]:
        """The rows as JSON lines; fills `folders`: where in the archive a trial's evidence goes → where it is."""
        for row in raw_rows.dump(self._store, self._info.name):
            folder = row["spec"].get("evidence_dir")
            inside = f"{EVIDENCE}/{row['number']:05d}"
            if folder:
                folders[inside] = Path(folder)
            masked = self._mask.data(_rebased(row, folder, HERE + inside) if folder else row)
            self.trials += 1
            yield _json(masked, indent=None) + b"\n"

    # ------------------------------------------------------------ traces

    def _write_traces(self, writer: Writer) -> None:
        """Every trace that a trial replayed, in canonical form; found as a rerun would find it."""
        first: dict[str, tuple[str, int]] = {}
        imported = set()
        for trial in self._store.trials(self._info.name):
            if self._store.spec_json(trial.uid):
                first.setdefault(trial.trace_sha256, (trial.trace_name, trial.number))
            else:
                imported.add(trial.trace_name)
        self.left_out += [f"trace {name!r}: its trials were imported" for name in sorted(imported)]
        for digest, (name, number) in first.items():
            try:
                found = originals.load(self._store, self._info.name, number, launch_dir=self._launch_dir)
            except (TraceError, StorageError) as error:
                self.left_out.append(f"trace {name!r}: {error}")
                continue
            member = f"traces/{digest[:12]}.jsonl"
            with tempfile.TemporaryDirectory(prefix="dflash-sweep-") as folder:
                path = Path(folder) / "trace.jsonl"
                traces.save(found.spec.trace, path)
                writer.add_parts(member, _parts(path))
            self.trace_files[digest] = member

    # ------------------------------------------------------------ evidence

    def _write_evidence(self, writer: Writer, folders: Mapping[str, Path], limit: int) -> None:
        """Files of the trials while they fit, records before logs."""
        found = sorted(
            (path.suffix not in _JSON_EVIDENCE, place, path.name, inside, path, size)
            for place, (inside, folder) in enumerate(folders.items())
            for path, size in _files(folder)
        )
        missing = sum(not folder.is_dir() for folder in folders.values())
        if missing:
            self.left_out.append(f"evidence of {missing} trial(s): the folders are not here any more")
        skipped, skipped_bytes, taken = 0, 0, 0
        for *_, name, inside, path, size in found:
            if taken + size > limit:
                skipped, skipped_bytes = skipped + 1, skipped_bytes + size
                continue
            taken += size
            writer.add(f"{inside}/{name}", self._shown(path))
        if skipped:
            self.left_out.append(
                f"{skipped} file(s) of evidence, {skipped_bytes / 2**20:.1f} MiB: beyond the size limit"
            )

    def _shown(self, path: Path) -> bytes:
        """A file of evidence, masked: JSON by its names, logs byte for byte; lines of records as they are."""
        content = path.read_bytes()
        if path.suffix == ".jsonl":
            return content
        if path.suffix == ".json":
            try:
                return _json(self._mask.data(json.loads(content)))
            except (ValueError, RecursionError):
                pass  # half a file of a trial that took the machine down: taken as a log is
        return self._mask.log(content)

    # ------------------------------------------------------------ findings

    def write_findings(self, writer: Writer, info: StudyInfo) -> None:
        """The findings as the masked rows give them, in the study's own language."""
        section = info.config.get("report") or {}
        with tempfile.TemporaryDirectory(prefix="dflash-sweep-") as name:
            folder = Path(name)
            with Store(f"sqlite:///{folder / 'rows.db'}") as copy:
                raw_rows.load(copy, info, (self._mask.data(row) for row in raw_rows.dump(self._store, info.name)))
                trials = copy.trials(info.name)
            try:
                formats = tuple(section.get("formats") or ("png",))
                report.write(info, trials, folder / "findings", lang=section.get("lang") or "en", formats=formats)
            except ConfigError as error:
                self.left_out.append(f"findings: {error}")
                return
            for path in sorted((folder / "findings").rglob("*")):
                if path.is_file():
                    writer.add_parts(str(path.relative_to(folder).as_posix()), _parts(path))


def _rebased(value: Any, old: str, new: str) -> Any:
    """The same data with every text that is `old`, or a path below it, leading to `new`."""
    if isinstance(value, Mapping):
        return {name: _rebased(entry, old, new) for name, entry in value.items()}
    if isinstance(value, list):
        return [_rebased(entry, old, new) for entry in value]
    if isinstance(value, str) and (value == old or value.startswith(old.rstrip("/") + "/")):
        return new + value[len(old.rstrip("/")) :]
    return value


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """The plain files directly in a folder, with their sizes; links and folders are not followed."""
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.is_symlink() and is_safe(path.name):
                yield path, path.stat().st_size


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            yield part


def _json(value: Any, indent: int | None = 1) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent).encode()
