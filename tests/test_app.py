"""The command line: what Hydra users expect works, what is wrong is one line and exit code 2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from dflash_sweep import app, schema, settings
from dflash_sweep.errors import ConfigError


def compose(*words: str) -> schema.Config:
    return settings.merge(app.compose_overrides(app.normalise(words)))


def test_both_spellings_choose_a_study() -> None:
    assert compose("study=ddtree").study_name == "ddtree"
    assert compose("+study=ddtree").study_name == "ddtree"


def test_documented_overrides_arrive() -> None:
    config = compose("+study=ddtree", "n_trials=20", "seed=9", "cluster.workers=2", "space.budget=choice(16,22,32)")
    assert (config.n_trials, config.seed, config.cluster.workers) == (20, 9, 2)
    assert config.space["budget"] == "choice(16,22,32)"


def test_axes_can_be_added_and_removed() -> None:
    config = compose("+study=ddtree", "space.n_batch=choice(256, 512)", "~space.top_k")
    assert config.space["n_batch"] == "choice(256, 512)"
    assert "top_k" not in config.space


def test_values_with_commas_and_equals_signs_pass_in_quotes() -> None:
    config = compose("+study=ddtree", "engine.extra_args=['--tensor-split','1,1']", "engine.model='/m/q=4 (1).gguf'")
    assert config.engine.extra_args == ["--tensor-split", "1,1"]
    assert config.engine.model == "/m/q=4 (1).gguf"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+study=nope"], "study=nope: there is no such study; allowed: "),
        (["+study=ddtree", "engine=nope"], "engine=nope: there is no such engine; allowed: attach, beellama"),
        (["+study=ddtree", "n_trails=3"], "n_trails: there is no such key; did you mean n_trials?"),
        (["+study=ddtree", "cluster.worker=3"], "cluster.worker: there is no such key; did you mean cluster.workers"),
        (["+study=ddtree", "n_trials=abc"], "n_trials: Value 'abc' of type 'str' could not be converted to Integer"),
        (["+study=ddtree", "engine.model=/m/q=4 (1).gguf"], "'engine.model=\"/m/q=4 (1).gguf\"'"),
        (["+study=ddtree", "engine.model=/m/a,b.gguf"], "needs quotes twice: 'engine.model=\"/m/a,b.gguf\"'"),
    ],
)
def test_wrong_input_is_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(*words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cluster.kind=slurm"], "cluster.kind=slurm: not known; allowed: ray, inline"),
        (["n_trials=-1"], "n_trials=-1: must be at least 0"),
        (["rerun.repeats=0"], "rerun.repeats=0: must be at least 1"),
        (["rerun.trial=-1"], "rerun.trial=-1: must be at least 0"),
        (["sampler.n_startup_trials=-1"], "sampler.n_startup_trials=-1: must be at least 0"),
        (["trace.max_turns=0"], "trace.max_turns=0: must be at least 1"),
        (["replay.temperature=-0.5"], "replay.temperature=-0.5: must be at least 0"),
        (["replay.temperature=nan"], "replay.temperature=nan: must be at least 0"),
        (["replay.turn_timeout_s=0"], "replay.turn_timeout_s=0: must be more than 0"),
        (["protocol.trial_timeout_s=-1"], "protocol.trial_timeout_s=-1: must be more than 0"),
        (["protocol.canary_every=-1"], "protocol.canary_every=-1: must be at least 0"),
        (["protocol.max_failures_in_a_row=0"], "protocol.max_failures_in_a_row=0: must be at least 1"),
        (["space.budget=choice(16"], "space.budget: cannot read 'choice(16'"),
        (["storage.url=studies.db"], "storage.url=studies.db: not a database URL"),
        (["study_name='../x'"], "study_name='../x': only letters, digits"),
        (["engine.binary=/no/such/server"], "engine.binary=/no/such/server: there is no such file"),
        (["fixed.budget=22"], "fixed.budget: also an axis of the space"),
        (["report.formats=[]"], "report.formats=[]: one or both of png, svg"),
        (["report.formats=[png,pdf]"], "report.formats=['png', 'pdf']: one or both of png, svg"),
        (["seed_points=[5]"], "seed_points[0]: a map of knob names to values is needed"),
    ],
)
def test_wrong_settings_are_named(words: list[str], message: str, tmp_path: Path) -> None:
    cfg = app.compose_overrides(app.normalise(["+study=ddtree", *words]))
    with pytest.raises(ConfigError) as caught:
        settings.build(cfg, launch_dir=tmp_path, run_dir=tmp_path, sampling_seed=1)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", ["on", "3:1", "010", "1.10", "4", "off"])
def test_words_of_a_command_line_are_text_or_an_error(value: str) -> None:
    """YAML makes True of on, 181 of 3:1, 8 of 010, 1.1 of 1.10: such a word may never reach a server."""
    cfg = app.compose_overrides(["+study=ddtree"])
    for place in ("engine", "compare.llamacpp"):
        text = f"extra_args: [--flag, {value}]"
        OmegaConf.update(cfg, place, OmegaConf.create(text), force_add=True)
        with pytest.raises(ConfigError, match=rf"^{re.escape(place)}\.extra_args\[1\]=.* in quotes"):
            settings.merge(cfg)
        OmegaConf.update(cfg, place, OmegaConf.create(text.replace(", ", ", '").replace("]", "']")), force_add=True)
        assert settings.merge(cfg)
        cfg = app.compose_overrides(["+study=ddtree"])


def test_variables_of_a_server_are_text_or_whole_numbers() -> None:
    config = compose("+study=ddtree", "engine.env.LLAMA_A=1", "engine.env.LLAMA_B=off", "engine.env.LLAMA_C='1.10'")
    assert config.engine.env == {"LLAMA_A": "1", "LLAMA_B": "off", "LLAMA_C": "1.10"}
    with pytest.raises(ConfigError, match=r"engine\.env\[LLAMA_A\]=True was read as a bool"):
        compose("+study=ddtree", "engine.env.LLAMA_A=true")


def test_relative_paths_count_from_the_launch_directory(tmp_path: Path) -> None:
    cfg = app.compose_overrides(["+study=ddtree"])
    built = settings.build(cfg, launch_dir=tmp_path, run_dir=tmp_path / "run", sampling_seed=1)
    assert built.storage_url == f"sqlite:///{tmp_path / 'studies.db'}"
    assert built.report_dir == tmp_path / "reports"


@pytest.mark.parametrize("chdir", ["true", "false"])
def test_paths_are_the_same_whether_the_job_changes_its_directory_or_not(
    chdir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers inherit the job's directory: every path is made absolute once, so resuming finds the same study."""
    (tmp_path / "my.jsonl").write_text("{}")
    seen: list[settings.Settings] = []

    def job(cfg: DictConfig, launch_dir: Path, run_dir: Path) -> int:
        assert (Path.cwd() == run_dir) is (chdir == "true")
        seen.append(settings.build(cfg, launch_dir=launch_dir, run_dir=run_dir, sampling_seed=1))
        return 0

    monkeypatch.chdir(tmp_path)
    words = ["+study=ddtree", "trace.path=my.jsonl", f"hydra.job.chdir={chdir}", "report.dir='out/${now:%Y}'"]
    assert app.main(words, job) == 0
    (built,) = seen
    assert built.storage_url == f"sqlite:///{tmp_path / 'studies.db'}"
    assert built.trace_path == str(tmp_path / "my.jsonl")
    assert built.run_dir.is_relative_to(tmp_path / "sweeps" / "ddtree")
    assert re.fullmatch(r"20\d\d", built.report_dir.name)  # resolved here: a worker knows no ${now:}
    assert "${" not in str(built.resolved)
    assert type(built.resolved["space"]) is dict


@pytest.mark.parametrize("study", app.choices("study"))
def test_every_shipped_study_builds_its_space(study: str, tmp_path: Path) -> None:
    cfg = app.compose_overrides([f"+study={study}", "engine.model=org/target"])  # some studies need one to be named
    built = settings.build(cfg, launch_dir=tmp_path, run_dir=tmp_path, sampling_seed=1)
    assert built.study_name
    assert built.space.size is None or built.space.size > 1 or built.config.n_trials == 0


@pytest.mark.parametrize("spelling", [["--config-dir", "mine"], ["-cd", "mine"], ["--config-dir=mine"]])
def test_a_study_in_a_folder_of_ones_own(
    spelling: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine" / "study").mkdir(parents=True)
    (tmp_path / "mine" / "study" / "own.yaml").write_text("# @package _global_\nstudy_name: own\nn_trials: 3\n")
    seen: list[tuple[str, int]] = []

    def job(cfg: DictConfig, _cwd: Path, _folder: Path) -> int:
        seen.append((cfg.study_name, cfg.n_trials))
        return 0

    monkeypatch.chdir(tmp_path)
    assert app.main([*spelling, "+study=own"], job) == 0
    assert seen == [("own", 3)]
    assert app.main([*spelling, "+study=own", "n_trails=4"], job) == 2
    assert app.main([*spelling, "+study=other"], job) == 2
    wrong_key, wrong_study = capsys.readouterr().err.splitlines()
    assert "did you mean n_trials?" in wrong_key
    assert wrong_study.startswith("error: study=other: there is no such study; allowed: ")
    assert "own" in wrong_study


def test_a_missing_folder_of_ones_own_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--config-dir", "/no/such/folder", "+study=ddtree"]) == 2
    assert app.main(["+study=ddtree", "--config-dir"]) == 2
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["error", "error"]


def test_no_study_is_an_error_that_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([]) == 2
    assert "no study is chosen: add +study=NAME; there are: beellama, ddtree" in capsys.readouterr().err


def test_an_error_inside_the_run_is_one_line_and_its_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job(_cfg: DictConfig, _cwd: Path, _folder: Path) -> int:
        raise ConfigError("engine.model=/x: there is no such file")

    monkeypatch.chdir(tmp_path)
    assert app.main(["+study=ddtree"], job) == 2
    assert capsys.readouterr().err == "error: engine.model=/x: there is no such file\n"


@given_settings(max_examples=20)  # each composes a whole configuration
@given(st.text(alphabet=st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=20))
def test_any_text_of_an_axis_reaches_the_parser_unharmed(text: str) -> None:
    if text[0] in "'\"" or "\\" in text or "$" in text:  # quoted already; interpolation is OmegaConf's own
        return
    cfg = app.compose_overrides(app.normalise(["+study=ddtree", f"space.budget={text}"]))
    assert cfg.space.budget == text
