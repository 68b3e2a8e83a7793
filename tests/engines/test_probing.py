"""Help texts of three kinds, finding and asking a binary, and what a build lacks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dflash_sweep.engines import probing
from dflash_sweep.engines.base import KnobDef
from dflash_sweep.engines.checks import added_environment, has_flag, knob_problems, option_values
from dflash_sweep.errors import ConfigError, EngineMissing
from dflash_sweep.records import EngineBuild, EngineSettings

LLAMA = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, q8_0, kvarn4
                                        (default: f16)
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max
--spec-type none,draft-simple,draft-eagle3,draft-dflash,ngram-simple
                                        comma-separated list of types; see --not-a-flag
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
"""


def test_llama_help() -> None:
    found = probing.entry_help(LLAMA)
    assert {"-c", "--ctx-size", "--help", "--usage", "-ctk", "--cache-type-k", "--spec-type", "-fa"} <= found.flags
    assert not {"--draft", "--draft-max", "--not-a-flag", "-----"} & found.flags
    assert found.values["--cache-type-k"] == ("f32", "f16", "q8_0", "kvarn4")
    assert found.values["--spec-type"] == ("none", "draft-simple", "draft-eagle3", "draft-dflash", "ngram-simple")
    assert found.values["--flash-attn"] == ("on", "off", "auto")
    assert "--cache-type-k=kvarn4" in found.with_values()


def test_argparse_help() -> None:
    text = (
        "usage: vllm serve [-h]\n\noptions:\n  --max-num-seqs MAX, -n MAX  at most; see also --other-flag\n"
        "                        --mentioned-in-text is not an entry\n  --dtype {auto,half}\n"
        "  --enforce-eager, --no-enforce-eager\n"
    )
    found = probing.argparse_help(text)
    assert {"--max-num-seqs", "--dtype", "--enforce-eager", "--no-enforce-eager"} <= found.flags
    assert "--other-flag" not in found.flags
    assert found.values["--dtype"] == ("auto", "half")


def test_usage_text() -> None:
    assert probing.usage_flags("usage: x <target.gguf> [--ddtree] [--draft P]") == {"--ddtree", "--draft"}


def test_a_binary_is_found_by_path_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "some-server"
    binary.write_text("#!/bin/sh\necho found; exit 3\n", encoding="utf-8")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = probing.find_binary(EngineSettings(name="x"), ("no-such-binary", "some-server"), "Build it.")
    assert found == str(binary)
    answer = probing.ask([found])
    assert (answer.code, answer.text) == (3, "found\n")
    assert probing.reason(answer) == "exit code 3: found"
    with pytest.raises(EngineMissing, match=r"no no-such-binary on the PATH.*Build it\."):
        probing.find_binary(EngineSettings(name="x"), ("no-such-binary",), "Build it.")
    with pytest.raises(EngineMissing, match="there is no such file"):
        probing.find_binary(EngineSettings(name="x", binary=str(tmp_path / "no")), (), "Build it.")


def test_a_binary_that_cannot_run_or_does_not_end(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program", encoding="utf-8")
    with pytest.raises(EngineMissing, match="cannot be run"):
        probing.ask([str(text)])
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 30\n", encoding="utf-8")
    slow.chmod(0o755)
    with pytest.raises(EngineMissing, match=r"did not answer within 0\.2 s"):
        probing.ask([str(slow)], timeout_s=0.2)


def test_a_probe_gets_no_stray_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "8")
    script = tmp_path / "env"
    script.write_text('#!/bin/sh\necho "[$LLAMA_ARG_N_PARALLEL] $LC_ALL"\n', encoding="utf-8")
    script.chmod(0o755)
    assert probing.ask([str(script)]).text == "[] C\n"


KNOBS = (
    KnobDef(name="depth", kind="int", flag="--depth", low=1, high=8, since="v2"),
    KnobDef(name="kind", kind="str", flag="--kind"),
    KnobDef(name="inner", kind="int", flag="--config.key"),
)
BUILD = EngineBuild(
    engine="x", version="v1", binary="b", dialect="old", flags=frozenset({"--kind", "--kind=a", "--config"})
)


def test_problems_name_knob_flag_and_build() -> None:
    problems = knob_problems(KNOBS, BUILD, {"depth": 3, "kind": "z", "inner": 1, "other": 1})
    assert problems == [
        "depth=3: x v1 (old) has no --depth (known since v2)",
        "kind=z: --kind of x v1 (old) takes a",
        "other: not a knob of x; known: depth, inner, kind",
    ]
    assert knob_problems(KNOBS, BUILD, {"depth": None, "kind": "a"}) == []
    assert knob_problems(KNOBS, BUILD, {"depth": 3}, {"depth": "--kind"}) == []
    assert knob_problems(KNOBS, BUILD, {"depth": 99}) == ["depth=99 is not allowed: it takes 1 to 8"]


def test_a_build_whose_flags_are_unknown_is_given_the_benefit() -> None:
    assert has_flag(EngineBuild(engine="x", version="1", binary="b"), "--anything")
    assert not has_flag(BUILD, "--anything")


def test_options_and_variables_are_checked_by_name() -> None:
    definitions = (KnobDef(name="a", kind="int", default=3), KnobDef(name="b", kind="bool"))
    assert option_values("x", definitions, {"b": True}) == {"a": 3, "b": True}
    with pytest.raises(ConfigError, match=r"engine\.options\.c: x has no such option; allowed: a, b"):
        option_values("x", definitions, {"c": 1})
    with pytest.raises(ConfigError, match=r"engine\.options\.a="):
        option_values("x", definitions, {"a": "three"})
    assert added_environment("x", {"A": "1"}, ("A",)) == {"A": "1"}
    with pytest.raises(ConfigError, match=r"engine\.env\.B: not a variable x reads; allowed: A"):
        added_environment("x", {"B": "1"}, ("A",))
