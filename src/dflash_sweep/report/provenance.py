"""Where a study's rows come from: engine, model, device, trace, versions, counts. Imports `report` siblings.

Names of hosts, users and folders stay out, so that a page can be sent to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from dflash_sweep.analysis import rows
from dflash_sweep.report import verdict_lines
from dflash_sweep.report.document import Inline, Table, code
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts, role_name

_SHORT_HASH = 12
MAX_LISTED = 3


def _distinct(values: Iterable[Any]) -> str:
    seen = dict.fromkeys(str(value) for value in values if value is not None and str(value))
    return ", ".join(list(seen)[:MAX_LISTED]) + (f" … ({len(seen)})" if len(seen) > MAX_LISTED else "")


def _file(path: Any) -> str:
    return PurePath(str(path)).name if path else ""


def _hash(value: Any) -> str:
    return f"sha256 {str(value)[:_SHORT_HASH]}…" if value else ""


def _models(provenance: Mapping[str, Any]) -> str:
    found = []
    for model in provenance.get("models") or ():
        if isinstance(model, Mapping):
            parts = [
                _file(model.get("path")), model.get("quantisation"),
                f"{model['size_bytes'] / 2**20:.0f} MiB" if model.get("size_bytes") else None,
                _hash(model.get("sha256")),
            ]  # fmt: skip
            found.append(f"{model.get('role', 'model')}: {' '.join(str(part) for part in parts if part)}")
    return "; ".join(found)


def _build(material: Material) -> str:
    build = material.study.provenance.get("build")
    builds = _distinct(material.trials["build"])
    if not isinstance(build, Mapping):
        known = [trial.result.environment.get("build") for trial in material.stored]
        hashes = _distinct(_hash(entry.get("sha256")) for entry in known if isinstance(entry, Mapping))
        return f"{builds} {hashes}".strip()
    return " ".join(
        part for part in (builds or str(build.get("version", "")), _hash(build.get("binary_sha256"))) if part
    )


def _trace(material: Material) -> str:
    found = dict.fromkeys(
        (str(name), str(digest))
        for name, digest in zip(material.trials["trace"], material.trials["trace_sha256"], strict=True)
    )
    return "; ".join(f"{name} {_hash(digest)}".strip() for name, digest in found)


def _devices(material: Material) -> str:
    memory = {trial.result.device.name: trial.result.device.memory_mib for trial in material.stored}
    return ", ".join(name + (f" ({size} MiB)" if size else "") for name, size in memory.items())


def _machine(provenance: Mapping[str, Any], texts: Texts) -> str:
    cores = provenance.get("cpu_cores")
    parts = [provenance.get("cpu"), texts("provenance.cores", count=cores) if cores else None, provenance.get("os")]
    return ", ".join(str(part) for part in parts if part)


def _versions(provenance: Mapping[str, Any]) -> str:
    packages = provenance.get("packages")
    named = [f"python {provenance['python']}"] if provenance.get("python") else []
    if isinstance(packages, Mapping):
        named += [f"{name} {version}" for name, version in sorted(packages.items()) if version]
    return ", ".join(named)


def _code_state(provenance: Mapping[str, Any], texts: Texts) -> str:
    git = provenance.get("git")
    if not isinstance(git, Mapping) or not git.get("commit"):
        return ""
    return f"{str(git['commit'])[:_SHORT_HASH]}{texts('provenance.dirty') if git.get('dirty') else ''}"


def _status(material: Material, texts: Texts) -> str:
    study = material.study
    reason = verdict_lines.stop_reason(study, material.verdicts, texts)
    key = f"status.study.{study.status}"
    status = texts(key) if texts.has(key) else study.status
    return texts("titled", title=status, subject=reason) if reason else status


def _roles(material: Material, texts: Texts) -> str:
    """How many runs were made for what. Plain decoding in a confirm block is part of the block."""
    kinds = zip(material.trials["role"].map(str), material.trials["speculative"].map(bool), strict=True)
    keyed = sorted((role, role == "canary" and speculative) for role, speculative in kinds)
    return ", ".join(
        f"{role_name(texts, role, speculative=best)} {count}" for (role, best), count in Counter(keyed).items()
    )


def provenance_rows(material: Material, texts: Texts) -> list[tuple[str, str]]:
    """Name and value of everything known; what is not known is left out."""
    study, provenance = material.study, material.study.provenance
    ended = {
        "failed": int(rows.failed(material.trials).sum()), "stopped": int(rows.stopped_early(material.trials).sum()),
    }  # fmt: skip
    roles = _roles(material, texts) or "—"
    found = [
        ("study", study.name),
        ("kind", texts(f"word.{study.measurement}")),
        ("engine", _distinct([*material.trials["engine"], study.engine])),
        ("build", _build(material)),
        ("models", _models(provenance)),
        ("device", _devices(material)),
        ("machine", _machine(provenance, texts)),
        ("trace", _trace(material)),
        ("trials", texts("provenance.counts", total=len(material.trials), **ended, roles=roles)),
        ("seed", str(study.seed)),
        ("versions", _versions(provenance)),
        ("code", _code_state(provenance, texts)),
        ("time", " – ".join(part for part in (study.created_utc, study.finished_utc) if part)),
        ("status", _status(material, texts)),
    ]
    return [(name, value) for name, value in found if value]


def provenance_table(material: Material, texts: Texts, word: str) -> Table:
    body: list[tuple[Inline, ...]] = [
        (texts(f"provenance.{name}"), code(value) if name in ("study", "build", "code") else value)
        for name, value in provenance_rows(material, texts)
    ]
    return Table(("", texts("column.value")), tuple(body), "ll", texts("table.provenance.caption", word=word))
