"""Servers that already run: who they are by the shape of their pages, what is missing, and whole trials."""

from __future__ import annotations

import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_sweep import metrics, server, trial
from dflash_sweep.engines import LaunchRequest, attach_probe
from dflash_sweep.engines.attach import AttachEngine
from dflash_sweep.errors import ConfigError, EngineMissing
from dflash_sweep.records import EngineBuild, EngineSettings, Knobs, ReplayPolicy, Role, TrialSpec
from fakes.servers import arrange, stub

ENGINE = AttachEngine()


@contextmanager
def running(folder: Path, module: str, variant: str, *words: str) -> Iterator[str]:
    """A stub that somebody else started; yields its address."""
    port = server.free_port()
    folder.mkdir(exist_ok=True)
    binary = stub.install(folder, module, variant)
    argv = [str(binary), *(word.format(port=port) for word in words)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(500):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def settings_for(url: str, **options: str) -> EngineSettings:
    return EngineSettings(name="attach", options={"url": url, **options}, startup_timeout_s=20.0)


LAUNCH = {
    "beellama": ("--model", "/dev/null", "--port", "{port}"),
    "lucebox": ("/dev/null", "--port", "{port}", "--host", "127.0.0.1"),
    "vllm": ("serve", "m", "--host", "127.0.0.1", "--port", "{port}"),
    "sglang": ("-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", "{port}"),
}


@pytest.mark.parametrize(
    ("module", "variant", "kind", "version"),
    [
        ("beellama", "B2", "llamacpp", "b1-x"),
        ("lucebox", "G2", "lucebox", "x"),
        ("vllm", "0.33.0", "vllm", "0.33.0"),
        ("sglang", "0.5.23", "sglang", "0.5.23"),
        ("openai", "ollama", "ollama", "0.19.1"),
        ("openai", "koboldcpp", "koboldcpp", "1.76"),
        ("openai", "lmstudio", "lmstudio", "v1"),
        ("openai", "ik_llama", "ik_llama", "4"),
        ("openai", "dflash-mlx", "dflash-mlx", "unknown"),
        ("openai", "atomic", "atomic-chat", "unknown"),
        ("openai", "omlx", "omlx", "unknown"),
        ("openai", "someone", "openai", "unknown"),
    ],
)
def test_servers_are_told_apart(module: str, variant: str, kind: str, version: str, tmp_path: Path) -> None:
    with running(tmp_path, module, variant, *LAUNCH.get(module, ("{port}",))) as url:
        found = attach_probe.identify(url + "/v1/")
    assert (found.kind, found.version) == (kind, version)
    assert len(found.models) == 1


def test_what_is_missing_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"engine\.options\.url is not set"):
        ENGINE.probe(EngineSettings(name="attach"))
    nobody = f"http://127.0.0.1:{server.free_port()}"
    with pytest.raises(EngineMissing, match=f"nobody answers at {nobody}"):
        ENGINE.probe(settings_for(nobody))
    with (
        running(tmp_path / "a", "openai", "empty", "{port}") as url,
        pytest.raises(EngineMissing, match="no model loaded"),
    ):
        ENGINE.probe(settings_for(url))
    with (
        running(tmp_path / "b", "openai", "locked", "{port}") as url,
        pytest.raises(EngineMissing, match="wants a key"),
    ):
        ENGINE.probe(settings_for(url))
    with running(tmp_path / "c", "openai", "someone", "{port}") as url:
        with pytest.raises(EngineMissing, match=r"set engine\.options\.model to one of m"):
            ENGINE.probe(settings_for(url))
        with pytest.raises(EngineMissing, match="has no model 'x'; loaded: m"):
            ENGINE.probe(settings_for(url, model="x"))
        assert ENGINE.probe(settings_for(url, model="m")).version == "openai unknown"
    with pytest.raises(ConfigError, match="the variable is not set"):
        ENGINE.probe(settings_for(nobody, api_key_env="NO_SUCH_KEY"))
    monkeypatch.setenv("SOME_KEY", "abc")
    assert ENGINE.api_key(settings_for(nobody, api_key_env="SOME_KEY")) == "abc"


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://x", "http://", "http://x:99999", "http://x:port"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="not an address"):
        attach_probe.root_url(url)


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://x:1/v1", "http://x:1"),
        ("http://x/", "http://x"),
        ("https://x/a/v1/", "https://x/a"),
        (" http://x ", "http://x"),
    ],
)
def test_addresses(url: str, root: str) -> None:
    assert attach_probe.root_url(url) == root


BUILD = EngineBuild(
    engine="attach", version="vllm 1", binary="http://x", dialect="vllm", flags=frozenset({"model=a", "model=b"})
)


def test_only_requests_can_differ() -> None:
    settings = settings_for("http://x")
    assert ENGINE.check(settings, BUILD, {"target_temperature": 0.0, "model": "a"}) == ()
    assert any("restart it yourself" in p for p in ENGINE.check(settings, BUILD, {"budget": 22}))
    assert any("loaded: a, b" in p for p in ENGINE.check(settings, BUILD, {"model": "c"}))
    assert any("leave it unset" in p for p in ENGINE.check(replace(settings, model="/m.gguf"), BUILD, {}))
    with pytest.raises(ConfigError, match="starts no server"):
        ENGINE.launch_spec(
            LaunchRequest(
                settings=settings, build=BUILD, knobs={}, speculative=True, device=arrange.CPU, host="h", port=1
            )
        )


def test_a_point_is_a_request() -> None:
    knobs: Knobs = {"target_temperature": 0.5, "sampling_top_k": 20, "sampling_top_p": None, "draft_model": "d"}
    fields = ENGINE.request_fields(settings_for("http://x", model="m"), knobs, "code")
    assert fields == {"model": "m", "temperature": 0.5, "top_k": 20, "draft_model": "d"}
    greedy: Knobs = {"target_temperature": 0.0, "sampling_top_k": 20}
    assert ENGINE.effective_point(greedy) == {"target_temperature": 0.0, "sampling_top_k": None}


@pytest.mark.parametrize(
    ("module", "variant", "model", "source"),
    [("beellama", "B2", None, "json"), ("vllm", "0.33.0", "m", "metrics"), ("sglang", "0.5.23", "m", "client"),
     ("openai", "ollama", "m", "client"), ("openai", "ik_llama", None, "json")],
)  # fmt: skip
def test_a_whole_trial_on_a_server_of_somebody_else(
    module: str, variant: str, model: str | None, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with running(tmp_path, module, variant, *LAUNCH.get(module, ("{port}",))) as url:
        settings = settings_for(url, **({"model": model} if model else {}))
        spec = TrialSpec(
            uid="t", study="s", role=Role.SEARCH, candidate=0, knobs={"target_temperature": 0.0}, engine=settings,
            build=ENGINE.probe(settings), trace=arrange.trace(), policy=ReplayPolicy(max_tokens=64),
            speculative=module == "openai", evidence_dir=str(tmp_path / "evidence"), timeout_s=60.0,
        )  # fmt: skip
        result = trial.run_trial(spec, arrange.CPU)
        assert urllib.request.urlopen(f"{url}/health", timeout=5).status == 200, "the server must go on running"
    assert result.failure is None, result.failure
    assert {turn.counters.timing_source for turn in result.turns} == {source}
    assert metrics.pooled_decode_tps(result.turns)
    assert result.launch is None
