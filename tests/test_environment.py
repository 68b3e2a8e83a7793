"""Provenance: devices as NVML lists them, the state of code and files, and that nothing missing stops a study."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dflash_sweep import environment
from dflash_sweep.records import Device, ModelFile
from dflash_sweep.seeds import derive
from fakes import fake_engine
from fakes.fake_nvml import BIG, SMALL, FakeNvml


def test_gpus_are_listed_by_bus_with_name_and_uuid() -> None:
    nvml = FakeNvml(SMALL, BIG)
    assert environment.gpus(nvml=nvml) == (
        Device(kind="gpu", index=0, name="Small Card", uuid="GPU-aaaa0000-2222", memory_mib=8192),
        Device(kind="gpu", index=1, name="Big Card", uuid="GPU-bbbb0000-1111", memory_mib=24576),
    )
    assert nvml.open == 0  # closed again


def test_without_nvml_there_are_no_gpus() -> None:
    assert environment.gpus(nvml=FakeNvml(usable=False)) == ()


def test_a_card_that_does_not_tell_its_name_is_listed_all_the_same() -> None:
    (device,) = environment.gpus(nvml=FakeNvml({}))
    assert device == Device(kind="gpu", index=0, name="unknown GPU")


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1", ["GPU-bbbb0000-1111"]),
        ("1,0", ["GPU-bbbb0000-1111", "GPU-aaaa0000-2222"]),
        ("GPU-bbbb", ["GPU-bbbb0000-1111"]),
        (" GPU-aaaa0000-2222 ", ["GPU-aaaa0000-2222"]),
        ("0,7,1", ["GPU-aaaa0000-2222"]),  # CUDA stops at the first that is not there
        ("", []),
        ("-1", []),
        ("MIG-00000000-0000-0000-0000-000000000000", ["MIG-00000000-0000-0000-0000-000000000000"]),
    ],
)
def test_the_users_choice_of_gpus_is_kept_as_it_is(visible: str, uuids: list[str]) -> None:
    found = environment.gpus(visible, FakeNvml(SMALL, BIG))
    assert [device.uuid for device in found] == uuids
    assert {device.kind for device in found} <= {"gpu"}


def test_the_state_of_a_card() -> None:
    state = environment.gpu_state(Device(kind="gpu", index=0, name="Big Card", uuid=BIG["uuid"]), FakeNvml(SMALL, BIG))
    assert state == {
        "driver": "580.1",
        "cuda": "13.1",
        "pci_bus": "00000000:65:00.0",
        "power_limit_w": 280.0,
        "default_power_limit_w": 350.0,
        "sm_clock_mhz": 1900,
        "memory_clock_mhz": 9500,
        "max_sm_clock_mhz": 2100,
        "max_memory_clock_mhz": 9751,
        "temperature_c": 61,
        "persistence_mode": True,
        "ecc": None,
    }


def test_no_card_no_state() -> None:
    gpu = Device(kind="gpu", index=0, name="x", uuid="GPU-gone")
    assert environment.gpu_state(gpu, FakeNvml(SMALL)) == {}
    assert environment.gpu_state(gpu, FakeNvml(usable=False)) == {}
    assert environment.gpu_state(fake_engine.CPU, FakeNvml(BIG)) == {}


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, env=env)


def test_git_state(tmp_path: Path) -> None:
    assert environment.git_state(tmp_path) == {"commit": None, "dirty": None}
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "one")
    state = environment.git_state(tmp_path)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (tmp_path / "studies.db").write_text("")  # untracked results do not make the code dirty
    assert environment.git_state(tmp_path)["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert environment.git_state(tmp_path) == {"commit": state["commit"], "dirty": True}


def test_git_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.git_state(tmp_path) == {"commit": None, "dirty": None}


def test_provenance_of_a_study(tmp_path: Path) -> None:
    found = environment.provenance(tmp_path, (fake_engine.CPU,))
    assert found["git"] == {"commit": None, "dirty": None}
    assert found["devices"] == [{"kind": "cpu", "index": 0, "name": "test CPU", "uuid": None, "memory_mib": None}]
    for name in ("host", "kernel", "os", "cpu", "cpu_threads", "usable_cpus", "memory_mib", "python"):
        assert found[name], name
    assert {"dflash-sweep", "ray", "optuna", "httpx"} <= set(found["packages"])
    assert msgspec.json.decode(msgspec.json.encode(found)) == found


def test_a_configuration_is_known_by_its_hash_and_its_seeds() -> None:
    found = environment.configuration({"a": {"b": 1}, "c": [2]}, 7)
    assert found == environment.configuration({"c": [2], "a": {"b": 1}}, 7)  # the order of keys says nothing
    assert found["config_sha256"] != environment.configuration({"a": {"b": 2}, "c": [2]}, 7)["config_sha256"]
    assert found["seeds"] == {
        "seed": 7, "sampler": derive(7, "sampler"), "sampling": derive(7, "sampling"), "trace": derive(7, "trace"),
        "order": derive(7, "order"),
    }  # fmt: skip


def test_every_trial_carries_what_the_program_was_started_with(tmp_path: Path) -> None:
    started = {**environment.provenance(tmp_path, ()), **environment.configuration({}, 7)}
    found = environment.origin(started)
    assert set(found) == {"git", "code", "python", "packages", "config_sha256", "seeds"}
    assert environment.origin({}) == {}


def test_models_and_devices_of_a_study_stand_in_each_trials_environment(tmp_path: Path) -> None:
    model = ModelFile(role="target", path="/somewhere/m.gguf", size_bytes=9, sha256="a" * 64, quantisation="Q4_K_M")
    spec = replace(fake_engine.spec(tmp_path), models=(model,), devices=("GPU-1", "GPU-2"))
    found = environment.collect(fake_engine.CPU, spec)
    assert found["models"] == [{"role": "target", "size_bytes": 9, "sha256": "a" * 64, "quantisation": "Q4_K_M"}]
    assert found["devices"] == ["GPU-1", "GPU-2"]


def test_environment_of_a_trial(tmp_path: Path) -> None:
    found = environment.collect(fake_engine.CPU, fake_engine.spec(tmp_path))
    assert found["gpu"] == {}
    assert len(found["load_average"]) == 3
    assert found["build"] == {"engine": "fake", "version": "1", "sha256": None}
    assert found["files"]["binary"]["size_bytes"] == fake_engine.SERVER.stat().st_size
    assert msgspec.json.decode(msgspec.json.encode(found)) == found


def test_a_file_that_went_away_is_told_as_missing(tmp_path: Path) -> None:
    build = replace(fake_engine.BUILD, binary="/nonexistent/server")
    assert environment.collect(fake_engine.CPU, fake_engine.spec(tmp_path, build=build))["files"] == {"binary": None}
