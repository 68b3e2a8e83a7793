"""Engine `emulator`: the DDTree fork's server emulated in a process of our own; its times are not measurements.

Imports `engines.ddtree`, `engines.base`, `engines.rendering`, `records`.
The process is `python -m dflash_sweep.emulator`.
"""

from __future__ import annotations

import hashlib
import sys
from importlib import metadata, resources
from typing import Any

from dflash_sweep.engines import ddtree_log
from dflash_sweep.engines.base import EngineFacts, KnobDef, LaunchRequest
from dflash_sweep.engines.checks import option_values
from dflash_sweep.engines.ddtree import DDTreeEngine
from dflash_sweep.engines.rendering import check_value, render
from dflash_sweep.records import EngineBuild, EngineSettings, Knobs, LaunchSpec, Measurement, ModelFile

OPTIONS: tuple[KnobDef, ...] = (
    KnobDef(name="card", kind="choice", flag="--emulator-card", choices=("rtx4090", "rtx3090"), default="rtx4090",
            doc="the card whose cost model is used"),
    KnobDef(name="clock", kind="choice", flag="--emulator-clock", choices=("virtual", "real"), default="virtual",
            doc="virtual: answers come at once, timings are computed; real: tokens stream at the computed pace"),
    KnobDef(name="workload", kind="choice", flag="--emulator-workload", default="auto",
            choices=("auto", "agent", "code", "long_context", "tool_call", "thinking", "prose", "gsm8k", "math500"),
            doc="whose acceptance; auto = by the bucket of each turn"),
    KnobDef(name="draft_path", kind="choice", flag="--emulator-draft-path", choices=("shared", "dedicated"),
            default="shared", doc="builds before and after the draft's own path (step near 220 and 86 ms)"),
    KnobDef(name="seed", kind="int", flag="--emulator-seed", low=0, default=0, doc="of texts and proposals"),
    KnobDef(name="launch_seed", kind="int", flag="--emulator-launch-seed", low=0, default=0,
            doc="of the noise of one launch; a trial of its own gets one of its own"),
    KnobDef(name="noise", kind="float", flag="--emulator-noise", low=0.0, default=1.0,
            doc="scale of the noise: 0 = none, 1 = as in the published repeats"),
    KnobDef(name="drift", kind="float", flag="--emulator-drift", default=0.0, unit="1/h",
            doc="slow-down per hour of emulated run time"),
    KnobDef(name="slowdown", kind="float", flag="--emulator-slowdown", low=0.0, default=0.0,
            doc="share by which everything takes longer: 0.05 = a machine that became 5 % slower"),
    KnobDef(name="throttle_after", kind="float", flag="--emulator-throttle-after", low=0.0, unit="s",
            doc="emulated run time after which the card is hot and slower; None = never"),
    KnobDef(name="fault", kind="str", flag="--emulator-fault", doc="what the server does wrong: name[:argument],…"),
)  # fmt: skip
"""Options that a study sets for the engine. They are the emulator's, never axes of a search."""

MODEL_NAME = "Qwen3.5-27B-Q4_K_M.emulated.gguf"
DRAFT_NAME = "Qwen3.5-27B-DFlash.emulated.gguf"


class EmulatorEngine(DDTreeEngine):
    """The fork's adapter with another executable: same knobs, same parser, same failure signatures."""

    name = "emulator"
    facts = EngineFacts(
        measurement=Measurement.EMULATED,
        first_token_from_prefill=False,
        stages=("step_ms", *ddtree_log.STAGE_KEYS, "other_ms"),
        lossless=False,
        needs_draft_model=False,
        accelerator="none",
        machine_options=("noise", "drift", "slowdown", "throttle_after", "fault"),
        cold_by="first_request",
        note="times come from a cost model fitted to public measurements; see docs/emulator.md",
    )
    options: tuple[KnobDef, ...] = OPTIONS

    def probe(self, settings: EngineSettings) -> EngineBuild:
        """Nothing to run: the emulator is part of this package. Its hash covers code and data files."""
        return EngineBuild(
            engine=self.name,
            version=metadata.version("dflash-sweep"),
            binary=sys.executable,
            binary_sha256=_package_sha256(),
            dialect="emulated",
        )

    def models(self, settings: EngineSettings) -> tuple[ModelFile, ...]:
        """None: there are no model files, and nothing may look as if there were."""
        return ()

    def check(self, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> tuple[str, ...]:
        by_name = {option.name: option for option in self.options}
        problems = [f"engine.options: {name} is not an option" for name in settings.options if name not in by_name]
        for name, value in settings.options.items():
            if name in by_name and (problem := check_value(by_name[name], value)):
                problems.append(f"engine.options: {problem}")
        return (*problems, *super().check(settings, build, knobs))

    def launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        """The fork's command line after `python -m dflash_sweep.emulator`, and the options as `--emulator-*`."""
        spec = super().launch_spec(request)
        words, _ = render(self.options, option_values(self.name, self.options, request.settings.options))
        argv = (sys.executable, "-m", "dflash_sweep.emulator", *spec.argv[1:], *words)
        return LaunchSpec(argv=argv, env=spec.env)

    def _model_words(self, settings: EngineSettings, speculative: bool) -> list[str]:
        words = ["--model", settings.model or MODEL_NAME, "--speculative-mode", "ddtree" if speculative else "chain"]
        return [*words, "--model-draft", settings.draft_model or DRAFT_NAME] if speculative else words

    def request_fields(self, settings: EngineSettings, knobs: Knobs, bucket: str) -> dict[str, Any]:
        """The turn's bucket: it stands for what the text would tell a real draft."""
        return {"emulator_bucket": bucket}


def _package_sha256() -> str:
    """Hash of everything the figures depend on: code and data of the emulator package, and the algorithm."""
    digest = hashlib.sha256()
    package = resources.files("dflash_sweep")
    files = [package / "ddtree.py", *_files(package / "emulator")]
    for file in sorted(files, key=lambda entry: entry.name):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _files(folder: Any) -> list[Any]:
    found: list[Any] = []
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            found += _files(entry)
        elif entry.name.endswith((".py", ".toml")):
            found.append(entry)
    return found
