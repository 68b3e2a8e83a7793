"""A command over several lines is still the same command."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dflash_sweep.terminal.command_text import words, wrapped

WORD = st.text(st.sampled_from("abz-=/.'\"$ \\*\n~#"), max_size=12)
LONG = "/opt/llama/build/bin/llama-server -m '/models/Qwen 27B/target.gguf' -md /models/draft.gguf --budget 22 -c 32768"


def test_a_switch_and_its_value_stay_together() -> None:
    assert wrapped(LONG, 60) == [
        "  /opt/llama/build/bin/llama-server \\",
        "    -m '/models/Qwen 27B/target.gguf' \\",
        "    -md /models/draft.gguf --budget 22 -c 32768",
    ]


def test_a_short_command_is_one_line() -> None:
    assert wrapped("A=1 server --port 80") == ["  A=1 server --port 80"]


@given(st.lists(WORD, min_size=1, max_size=12), st.integers(20, 120))
def test_a_shell_reads_the_same_words(given_words: list[str], width: int) -> None:
    assume(not any("\\\n" in word for word in given_words))  # what is taken out below must be a fold of ours
    command = shlex.join(["server", *given_words])
    lines = wrapped(command, width)
    assert shlex.split("\n".join(lines).replace(" \\\n", " ")) == ["server", *given_words]
    for line in lines:
        longest = max(len(part) for part in line.split("\n"))
        assert longest <= width or len(words(line.removesuffix(" \\"))) == 1


@pytest.mark.parametrize("shell", ["sh", "bash"])
@settings(max_examples=8)
@given(given_words=st.lists(WORD, min_size=1, max_size=10))
def test_it_can_be_pasted(shell: str, given_words: list[str]) -> None:
    command = shlex.join(["printf", r"%s\0", *given_words])
    pasted = "\n".join(wrapped("A='1 2' " + command, 40))
    done = subprocess.run([shell, "-c", pasted], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == given_words
