"""Where and with what a number was measured: devices, driver, clocks, machine, packages, code state.

Imports `records` and `seeds`. Everything that this machine does not tell is None; nothing here stops a study.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pynvml

from dflash_sweep.records import Device, TrialSpec
from dflash_sweep.seeds import derive

PACKAGES = (
    "dflash-sweep", "ray", "optuna", "httpx", "hydra-core", "omegaconf", "msgspec", "numpy", "pandas", "scipy",
    "statsmodels", "sqlalchemy", "gguf", "nvidia-ml-py", "xllamacpp",
)  # fmt: skip

_LOG = logging.getLogger(__name__)
_MIB = 1 << 20


# ---------------------------------------------------------------- GPUs


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


@contextmanager
def _nvml(nvml: Any) -> Iterator[bool]:
    """NVML for the block; False where there is none (no driver, no card, no access)."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        _LOG.debug("NVML cannot be used: %s", error)
        yield False
        return
    try:
        yield True
    finally:
        nvml.nvmlShutdown()


def _tell(nvml: Any, query: Callable[[], Any]) -> Any:
    """The answer, or None where this device does not give one."""
    try:
        return query()
    except nvml.NVMLError:
        return None


def gpus(visible: str | None = None, nvml: Any = pynvml) -> tuple[Device, ...]:
    """The GPUs that NVML lists, in PCI order, or those of them that `visible` names; () where there is no NVML.

    `visible` is CUDA_VISIBLE_DEVICES as the user set it: None = all, else indices or ids (GPU-…, MIG-…; any unambiguous
    beginning). An id that NVML does not list (a MIG slice) is kept as an opaque device of its own.
    """
    with _nvml(nvml) as usable:
        if not usable:
            return ()
        found = tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    return found if visible is None else tuple(_chosen(found, visible))


def _gpu(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid, name = (
        _tell(nvml, lambda: nvml.nvmlDeviceGetUUID(handle)),
        _tell(nvml, lambda: nvml.nvmlDeviceGetName(handle)),
    )
    memory = _tell(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return Device(
        kind="gpu",
        index=index,
        name=_text(name) if name else "unknown GPU",
        uuid=_text(uuid) if uuid else None,
        memory_mib=None if memory is None else int(memory) // _MIB,
    )


def _chosen(found: tuple[Device, ...], visible: str) -> Iterator[Device]:
    for position, entry in enumerate(part.strip() for part in visible.split(",")):
        if entry in ("", "-1", "none", "NoDevFiles"):
            return  # CUDA stops at the first entry that names nothing
        if entry.isdigit():
            if int(entry) >= len(found):
                return
            yield found[int(entry)]
            continue
        listed = [device for device in found if device.uuid is not None and device.uuid.startswith(entry)]
        yield listed[0] if listed else Device(kind="gpu", index=len(found) + position, name=entry, uuid=entry)


def gpu_state(device: Device, nvml: Any = pynvml) -> dict[str, Any]:
    """Driver, clocks, limits and modes of one GPU now. Figures that it does not tell are None; {} for no GPU."""
    if device.kind != "gpu":
        return {}
    with _nvml(nvml) as usable:
        if not usable:
            return {}
        by_index = nvml.nvmlDeviceGetHandleByIndex
        handle = _tell(
            nvml, lambda: nvml.nvmlDeviceGetHandleByUUID(device.uuid) if device.uuid else by_index(device.index)
        )
        if handle is None:
            return {}
        return _gpu_state(nvml, handle)


def _gpu_state(nvml: Any, handle: Any) -> dict[str, Any]:
    def tell(query: Callable[[], Any]) -> Any:
        return _tell(nvml, query)

    cuda = tell(nvml.nvmlSystemGetCudaDriverVersion_v2)
    driver = tell(nvml.nvmlSystemGetDriverVersion)
    limit = tell(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    default = tell(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
    bus = tell(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    return {
        "driver": _text(driver) if driver else None,
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "pci_bus": _text(bus) if bus else None,
        "power_limit_w": None if limit is None else limit / 1000.0,
        "default_power_limit_w": None if default is None else default / 1000.0,
        "sm_clock_mhz": tell(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": tell(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "max_sm_clock_mhz": tell(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "max_memory_clock_mhz": tell(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "temperature_c": tell(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "persistence_mode": tell(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        "ecc": tell(lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
    }


# ---------------------------------------------------------------- machine, packages, code


def cpu_model() -> str | None:
    """The CPU's name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, None) or platform.machine() or None


def package_versions() -> dict[str, str]:
    """Versions of the packages that have a say in a measurement, those installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_state(folder: Path) -> dict[str, Any]:
    """Commit and dirty flag of the work tree around a folder; both None where there is none (or no git)."""
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else None
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    """What git answers; None where it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@lru_cache(maxsize=1)
def code_state() -> dict[str, Any]:
    """Commit and dirty flag of this program's own code; both None where it was installed from a package."""
    folder = Path(__file__).parent
    tracked = _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
    return git_state(folder) if tracked else {"commit": None, "dirty": None}


@lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """What stays the same while the machine runs: host, kernel, CPU, memory, Python, packages."""
    return {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "os": platform.platform(),
        "cpu": cpu_model(),
        "cpu_cores": psutil.cpu_count(logical=False),
        "cpu_threads": os.cpu_count(),
        "usable_cpus": sorted(os.sched_getaffinity(0)),
        "memory_mib": psutil.virtual_memory().total // _MIB,
        "python": platform.python_version(),
        "packages": package_versions(),
    }


# ---------------------------------------------------------------- all of it


def provenance(launch_dir: Path, devices: tuple[Device, ...] = ()) -> dict[str, Any]:
    """For a study's row: the machine, the code's state in the launch directory, and each device."""
    return {
        **machine(),
        "git": git_state(launch_dir),
        "code": code_state(),
        "devices": [
            {
                "kind": d.kind,
                "index": d.index,
                "name": d.name,
                "uuid": d.uuid,
                "memory_mib": d.memory_mib,
                **gpu_state(d),
            }
            for d in devices
        ],
    }


SEEDS = ("sampler", "sampling", "trace", "order")
"""Purposes whose seeds are written down; launch seeds stand with each trial's options."""

_ORIGIN = ("git", "code", "python", "packages", "config_sha256", "seeds")


def configuration(resolved: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """For a study's row: the hash of its whole resolved configuration, and every seed that its seed gives."""
    text = json.dumps(resolved, sort_keys=True, ensure_ascii=False, default=str)
    return {
        "config_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "seeds": {"seed": seed, **{name: derive(seed, name) for name in SEEDS}},
    }


def origin(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a study's provenance that each of its trials carries: a later run of the study may have another."""
    return {name: provenance[name] for name in _ORIGIN if name in provenance}


def collect(device: Device, spec: TrialSpec) -> dict[str, Any]:
    """For a trial's row, in the worker, before its start: the machine, the device's state, load, build and files.

    Files of a study are hashed in its preflight (`EngineBuild`, `ModelFile`); here only whether they are the same
    still: size and time of change.
    """
    paths = {"model": spec.engine.model, "draft_model": spec.engine.draft_model, "binary": spec.build.binary}
    paths |= {"draft_model" if model.role == "draft" else "model": model.path for model in spec.models}
    return {
        **machine(),
        "gpu": gpu_state(device),
        "load_average": list(os.getloadavg()),
        "cpu_mhz": getattr(psutil.cpu_freq(), "current", None),
        "build": {"engine": spec.build.engine, "version": spec.build.version, "sha256": spec.build.binary_sha256},
        "files": {role: _stat(path) for role, path in paths.items() if path},
        "models": [
            {name: value for name, value in asdict(model).items() if name != "path" and value is not None}
            for model in spec.models
        ],
        "devices": list(spec.devices),
        "plain_settings": spec.plain_settings,
    }


def _stat(path: str) -> dict[str, Any] | None:
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return {"path": path, "size_bytes": state.st_size, "mtime_ns": state.st_mtime_ns}
