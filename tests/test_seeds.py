"""Every seed follows from one, by a rule that the documentation states."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.environment import SEEDS
from dflash_sweep.seeds import derive

PAGE = (Path(__file__).parents[1] / "docs" / "reruns.md").read_text()


@given(seed=st.integers(0, 2**40), purpose=st.sampled_from(SEEDS))
def test_the_rule_is_that_of_the_page(seed: int, purpose: str) -> None:
    """The first four bytes of SHA-256 over "seed/purpose", big-endian, top bit cleared."""
    first = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:4]
    assert derive(seed, purpose) == int.from_bytes(first, "big") % 2**31


def test_the_page_names_every_seed_and_an_example() -> None:
    for purpose in SEEDS:
        assert f"| `{purpose}_seed` | `seed/{purpose}" in PAGE
    stated = re.search(r"For `seed=7`, `sampling_seed` is (\d+)\.", PAGE)
    assert stated is not None
    assert derive(7, "sampling") == int(stated[1])


def test_another_process_with_another_hash_seed_derives_the_same() -> None:
    code = "from dflash_sweep.seeds import derive; print(derive(7, 'sampler', 3))"
    words, environment = [sys.executable, "-c", code], {"PYTHONHASHSEED": "12345"}
    run = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert int(run.stdout) == derive(7, "sampler", 3)
