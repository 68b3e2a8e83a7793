"""Engine `ddtree`: llama-server of the fork Leechael/llama.cpp-dflash-ggml (DFlash draft with a DDTree verifier).

Imports `engines.base`, the shared helpers of this package, `engines.ddtree_log`, `records`, `errors`. Flags, variables
and defaults: the fork's public source (branch track-a/llama, head 819cc8b8c).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_sweep.engines import ddtree_log, probing
from dflash_sweep.engines.base import EngineFacts, KnobDef, LaunchRequest
from dflash_sweep.engines.checks import added_environment, build_name, has_flag, knob_problems, slot_only
from dflash_sweep.engines.models import gguf_files
from dflash_sweep.engines.rendering import render
from dflash_sweep.errors import ConfigError, EngineMissing, FailureKind
from dflash_sweep.records import (
    EngineBuild,
    EngineSettings,
    Exchange,
    Knobs,
    LaunchSpec,
    Measurement,
    ModelFile,
    TurnCounters,
)

BLOCK_SIZE = 16
"""Positions of a draft block, the root included: hard-coded in the fork, so a tree has at most 15 levels."""

DEFAULT_BUDGET = 22
AUTO_TOP_K = 8
"""`--ddtree-top-k 0` means 8 above 15 nodes and 1 up to there (the help text says otherwise; the code decides)."""

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "tq3_0")
QUANTISED = frozenset(CACHE_TYPES[3:])

VERIFIERS: dict[str, dict[str, str]] = {
    "exact": {"LLAMA_DDTREE_VERIFIER": "exact"},
    "paper": {"LLAMA_DDTREE_VERIFIER": "paper"},
    "trusted": {
        "LLAMA_DDTREE_VERIFIER": "paper",
        "LLAMA_DDTREE_TRUST_BATCHED": "1",  # the name of older builds; newer ones read the second
        "LLAMA_DDTREE_UNSAFE_TRUST_BATCHED": "1",
    },
    "fast_batched": {"LLAMA_DDTREE_VERIFIER": "exact", "LLAMA_DDTREE_FAST_BATCHED": "1"},
}
"""Verifier → environment. exact and paper decode every committed token one by one (bit-equal to plain decoding);
trusted and fast_batched believe one batched forward of the tree (not always bit-equal)."""

PRESENCE_VARIABLES = frozenset(
    f"LLAMA_DDTREE_{name}" for name in ("PROFILE", "TRACE", "TRACE_CHAIN_ROOT", "DUMP_DRAFT_TOP", "DUMP_STEP")
)
"""Switched on by being there at all, even as 0: off means absent."""

TREE_KNOBS: tuple[KnobDef, ...] = (
    KnobDef(name="target_feat_ctx", kind="int", env="LLAMA_DDTREE_TARGET_FEAT_CTX", low=1, high=2048, default=128,
            unit="tokens", doc="recent target hidden states that the draft sees; more costs prefill on every turn"),
    KnobDef(name="budget", kind="int", flag="--ddtree-budget", low=1, default=DEFAULT_BUDGET, unit="nodes",
            doc="tree nodes beside the root; fast rollback needs 77.625 MiB for each"),
    KnobDef(name="proposal_temp", kind="float", env="LLAMA_DDTREE_PROPOSAL_TEMP", low=1e-6, default=1.0,
            doc="temperature of the draft's log-probabilities; at exactly 1.0 they are not renormalised over top_k"),
    KnobDef(name="top_k", kind="int", flag="--ddtree-top-k", low=0, default=0, unit="candidates",
            doc="candidates per depth; 0 = 8 above budget 15, else 1"),
    KnobDef(name="chain_seed", kind="bool", flag="--ddtree-no-chain-seed", flag_when=False, default=True,
            doc="put the draft's first choices in as one chain before the best-first search"),
    KnobDef(name="verifier", kind="choice", env="LLAMA_DDTREE_VERIFIER", choices=tuple(VERIFIERS), default="paper",
            doc="exact and paper: bit-equal; trusted and fast_batched: one batched forward, not always bit-equal"),
    KnobDef(name="fast_rollback", kind="bool", env="LLAMA_DDTREE_FAST_ROLLBACK", doc="persist buffers, no replay"),
    KnobDef(name="grammar_verify", kind="bool", env="LLAMA_DDTREE_NO_GRAMMAR_VERIFY", flag_when=False, default=True,
            doc="sampler and grammar on every pick of the verify walk"),
    KnobDef(name="batched_shortcircuit", kind="bool", env="LLAMA_DDTREE_BATCHED_SHORTCIRCUIT", default=False,
            doc="batched verify: take a grammar-valid argmax without the sampler"),
    KnobDef(name="snapshot_fallback", kind="bool", env="LLAMA_DDTREE_SNAPSHOT_FALLBACK", default=True,
            doc="keep a snapshot per step as a net under fast rollback"),
    KnobDef(name="rollback_graph", kind="bool", env="LLAMA_DDTREE_ROLLBACK_GRAPH", default=True,
            doc="roll back by a GPU graph"),
    KnobDef(name="capture_direct", kind="bool", env="LLAMA_DDTREE_CAPTURE_DIRECT", default=False,
            doc="keep captured hidden states on the GPU"),
    KnobDef(name="profile", kind="bool", env="LLAMA_DDTREE_PROFILE", default=False, doc="a log line per draft forward"),
    KnobDef(name="draft_gpu_layers", kind="int", flag="--gpu-layers-draft", low=0, default=6, unit="layers",
            doc="draft layers on the GPU; 6 = all of it"),
)  # fmt: skip

SERVER_KNOBS: tuple[KnobDef, ...] = (
    KnobDef(name="cache_type_k", kind="choice", flag="--cache-type-k", choices=CACHE_TYPES, default="f16",
            doc="type of the target's K cache"),
    KnobDef(name="cache_type_v", kind="choice", flag="--cache-type-v", choices=CACHE_TYPES, default="f16",
            doc="type of the target's V cache; a quantised one needs flash attention"),
    KnobDef(name="n_batch", kind="int", flag="--batch-size", low=32, default=2048, unit="tokens",
            doc="logical batch; no gain above n_ubatch in ddtree mode"),
    KnobDef(name="n_ubatch", kind="int", flag="--ubatch-size", low=32, default=512, unit="tokens",
            doc="physical batch: prefill chunk and size of the compute buffer"),
    KnobDef(name="gpu_layers", kind="int", flag="--gpu-layers", low=0, default=65, unit="layers",
            doc="target layers on the GPU; 65 = all of it"),
    KnobDef(name="flash_attn", kind="choice", flag="--flash-attn", choices=("on", "off", "auto"), default="on",
            doc="flash attention of the target"),
)  # fmt: skip

_OFF_AS_ZERO = {
    "fast_rollback": "LLAMA_DDTREE_FAST_ROLLBACK",
    "snapshot_fallback": "LLAMA_DDTREE_SNAPSHOT_FALLBACK",
    "rollback_graph": "LLAMA_DDTREE_ROLLBACK_GRAPH",
}
"""Switches whose unset state is not off in every mode: a false is written out as 0."""

_ALWAYS: tuple[tuple[str, str], ...] = (("gpu_layers", "65"), ("flash_attn", "on"))
"""What is passed if no knob says otherwise: the engine's automatic choice would depend on free memory."""

HOW_TO_GET = (
    "Build target llama-server of Leechael/llama.cpp-dflash-ggml (branch track-a/llama) and set "
    "engine.binary=/path/to/llama-server"
)

MANAGED = frozenset({
    "-m", "--model", "-md", "--model-draft", "--speculative-mode", "--host", "--port", "-np", "--parallel", "-c",
    "--ctx-size", "-fit", "--fit", "--log-colors", "--log-file", "--log-disable", "--metrics", "--slots", "--no-slots",
})  # fmt: skip
"""Switches that engine settings or the worker own; engine.extra_args may not repeat them."""

EXTRA_VARIABLES = frozenset(
    {"LLAMA_DDTREE_DUMP_DRAFT_TOP", "LLAMA_DDTREE_PROFILE", "OMP_NUM_THREADS", "GGML_CUDA_GRAPHS"}
)
"""Variables that engine.env may add: diagnostics and the libraries' own. Settings go through knobs."""

_NEEDED_FLAGS = ("--speculative-mode", "--ddtree-budget", "--ddtree-top-k")
_VARIABLE = re.compile(rb"LLAMA_DDTREE_[A-Z0-9_]+")
_VERSION = re.compile(r"version:\s*(\S+)(?:\s*\((\w+)\))?")


def effective_top_k(budget: int, top_k: int | None) -> int:
    """Candidates per depth that the fork really uses: the given number, or 8 above budget 15 and 1 up to it."""
    if top_k:
        return top_k
    return AUTO_TOP_K if budget > BLOCK_SIZE - 1 else 1


class DDTreeEngine:
    """The adapter. Stateless; see `engines.base.Engine` for what each method promises."""

    name = "ddtree"
    facts = EngineFacts(
        measurement=Measurement.MEASURED,
        first_token_from_prefill=False,
        stages=("step_ms", *ddtree_log.STAGE_KEYS, "other_ms"),
        lossless=False,
        needs_draft_model=True,
        accelerator="gpu",
        cold_by="first_request",
        note="exact and paper verifiers are bit-equal to plain decoding, trusted and fast_batched are not always; "
        "plain decoding counts its first token to prefill, ddtree mode counts it to its first step",
    )
    knobs: tuple[KnobDef, ...] = (*TREE_KNOBS, *SERVER_KNOBS)
    options: tuple[KnobDef, ...] = ()

    # ------------------------------------------------------------ before the launch

    def probe(self, settings: EngineSettings) -> EngineBuild:
        """Run `--version` and `--help`, and list the LLAMA_DDTREE_ names that binary and libraries hold."""
        binary = probing.find_binary(settings, ("llama-server",), HOW_TO_GET)
        said, helped = probing.ask([binary, "--version"]), probing.ask([binary, "--help"])
        if said.code != 0 or helped.code != 0:
            failed = said if said.code != 0 else helped
            raise EngineMissing(f"engine.binary={binary} does not run: {probing.reason(failed)}. {HOW_TO_GET}")
        flags = probing.entry_help(helped.text).flags
        if missing := [flag for flag in _NEEDED_FLAGS if flag not in flags]:
            raise EngineMissing(
                f"engine.binary={binary} has no {', '.join(missing)}: it is no DDTree build. {HOW_TO_GET}"
            )
        version = _VERSION.search(said.text)
        named = f"{version[1]} ({version[2]})" if version and version[2] else (version[1] if version else "unknown")
        return EngineBuild(
            engine=self.name,
            version=named,
            binary=binary,
            binary_sha256=probing.binary_sha256(binary),
            dialect="track-a",
            flags=frozenset(flags | _variables(Path(binary))),
        )

    def models(self, settings: EngineSettings) -> tuple[ModelFile, ...]:
        """Target and draft as their GGUF headers describe them. Raises EngineMissing when they do not fit together."""
        if not settings.draft_model:
            raise EngineMissing(f"engine.draft_model is not set: engine {self.name} needs a DFlash draft GGUF file")
        return gguf_files(self.name, settings)

    def check(self, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> tuple[str, ...]:
        """Problems of one point: unknown knobs, values out of range, spellings the build lacks, combinations that the
        server refuses or ignores, arguments that this program sets itself."""
        problems = knob_problems(self.knobs, build, knobs)
        reads = {flag for flag in build.flags if flag.startswith("LLAMA_DDTREE_")}
        for definition in self.knobs if reads else ():
            wanted = knobs.get(definition.name) is not None
            if wanted and definition.env is not None and definition.env not in reads:
                problems.append(f"{definition.name}: {build_name(build)} does not read {definition.env}")
        problems += _combinations(settings, knobs)
        for word in settings.extra_args:
            name = word.split("=", 1)[0]
            if name in MANAGED:
                problems.append(
                    f"engine.extra_args: {name} is set by this program; use the engine's own settings for it"
                )
            elif name.startswith("-") and not name[1:2].isdigit() and not has_flag(build, name):
                problems.append(f"engine.extra_args: {build_name(build)} has no {name}")
        return tuple(problems)

    def effective_point(self, knobs: Knobs) -> Knobs:
        """Clamps applied, dead knobs None. With the chain seed, budgets up to 15 are one chain for any top_k and
        temperature; with one candidate per depth the tree is that chain with and without the seed."""
        point = dict(knobs)
        window = point.get("target_feat_ctx")
        if isinstance(window, int) and not isinstance(window, bool):
            point["target_feat_ctx"] = min(window, 2048) if window > 0 else 128
        budget_value, top_k_value = point.get("budget"), point.get("top_k")
        budget = budget_value if isinstance(budget_value, int) else DEFAULT_BUDGET
        top_k = effective_top_k(budget, top_k_value if isinstance(top_k_value, int) else None)
        dead: set[str] = set()
        if top_k_value is not None:
            point["top_k"] = top_k
        if budget <= BLOCK_SIZE - 1 and (top_k == 1 or point.get("chain_seed") is not False):
            dead |= {"top_k", "proposal_temp"}
            if point.get("chain_seed") is False:  # searched with one candidate a depth: the seeded chain
                point["chain_seed"] = True
        elif top_k == 1:
            dead |= {"proposal_temp", "chain_seed"}
        if point.get("verifier") not in ("trusted", "fast_batched"):
            dead |= {"batched_shortcircuit", "rollback_graph", "snapshot_fallback"}
        return {name: None if name in dead else value for name, value in point.items()}

    def lossless_at(self, knobs: Knobs) -> bool:
        """Whether greedy text equals plain decoding by construction at this point (the verifier decides)."""
        return knobs.get("verifier") not in ("trusted", "fast_batched")

    # ------------------------------------------------------------ the launch

    def launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        """llama-server in ddtree mode, or in chain mode without a draft for plain decoding: same binary, same rest."""
        settings = request.settings
        argv = [request.build.binary, *self._model_words(settings, request.speculative)]
        argv += ["--host", request.host, "--port", str(request.port), "--parallel", "1", "--ctx-size"]
        argv += [str(settings.n_ctx), "-fit", "off", "--log-colors", "off", "--metrics", "--slots"]
        argv += slot_only(settings, request.build, request.shared)
        words, env = self._rendered(request.knobs, request.speculative)
        argv += [*words, *settings.extra_args]
        return LaunchSpec(argv=tuple(argv), env={**env, **added_environment(self.name, settings.env, EXTRA_VARIABLES)})

    def _model_words(self, settings: EngineSettings, speculative: bool) -> list[str]:
        if not settings.model or (speculative and not settings.draft_model):
            raise ConfigError("engine.model and engine.draft_model must name GGUF files")
        words = ["--model", settings.model, "--speculative-mode", "ddtree" if speculative else "chain"]
        return [*words, "--model-draft", settings.draft_model or ""] if speculative else words

    def _rendered(self, knobs: Knobs, speculative: bool) -> tuple[list[str], dict[str, str]]:
        known = {definition.name for definition in self.knobs}
        if unknown := sorted(set(knobs) - known):
            raise ConfigError(
                f"knob {unknown[0]!r} is not known to engine {self.name}; known: {', '.join(sorted(known))}"
            )
        definitions = self.knobs if speculative else SERVER_KNOBS
        names = {definition.name for definition in definitions}
        wanted = {name: value for name, value in knobs.items() if name in names}
        words, env = render(definitions, wanted)
        argv = list(words)
        by_name = {definition.name: definition for definition in self.knobs}
        always = (*_ALWAYS, ("draft_gpu_layers", "6")) if speculative else _ALWAYS
        for name, value in always:
            if wanted.get(name) is None:
                argv += [by_name[name].flag or "", value]
        if wanted.get("verifier") is not None:
            env |= VERIFIERS[str(wanted["verifier"])]
        env |= {variable: "0" for name, variable in _OFF_AS_ZERO.items() if wanted.get(name) is False}
        return argv, env

    def request_fields(self, settings: EngineSettings, knobs: Knobs, bucket: str) -> dict[str, Any]:
        """Nothing: every knob of this engine is fixed at launch, and `timings` comes without being asked for."""
        return {}

    # ------------------------------------------------------------ after the run

    def applied(
        self, knobs: Knobs, speculative: bool, props: Mapping[str, Any], slots: Sequence[Any], log: str
    ) -> Knobs:
        """What the log shows. The fork's /slots and /props say nothing about its tree, so budget and top_k appear only
        when a dump variable is set."""
        shown = ddtree_log.shown_settings(log)
        if speculative:
            shown.setdefault("speculation", "none")
        context = props.get("default_generation_settings", {}).get("n_ctx")
        return {**shown, "n_ctx": context} if isinstance(context, int) else shown

    def parse_trial(self, exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
        return ddtree_log.parse_trial(exchanges, log)

    def classify(self, log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
        return ddtree_log.classify(log, exit_code)

    def memory_mib(self, log: str) -> dict[str, float]:
        return ddtree_log.memory_mib(log)


# ---------------------------------------------------------------- checks and probing


def _combinations(settings: EngineSettings, knobs: Knobs) -> list[str]:
    problems = []
    types = (knobs.get("cache_type_k"), knobs.get("cache_type_v"))
    if "tq3_0" in types:
        problems.append("cache_type tq3_0 is refused: with ddtree its output differs from plain decoding at once")
    if knobs.get("flash_attn") == "off" and types[1] in QUANTISED:
        problems.append(f"cache_type_v={types[1]} needs flash_attn=on (a quantised V cache)")
    budget = knobs.get("budget")
    nodes = (budget if isinstance(budget, int) else DEFAULT_BUDGET) + 1
    if knobs.get("verifier") in ("trusted", "fast_batched"):
        for name in ("n_ubatch", "n_batch"):
            size = knobs.get(name)
            if isinstance(size, int) and size < nodes:
                problems.append(f"{name}={size} is smaller than the tree of {nodes} nodes: the server would abort")
    for name, value in sorted(settings.env.items()):
        if name in PRESENCE_VARIABLES and value in ("", "0", "off", "false"):
            problems.append(f"engine.env.{name}={value!r}: it is on whenever it is set; leave it out to switch it off")
    return problems


def _variables(binary: Path) -> set[str]:
    """LLAMA_DDTREE_ names in the binary and the shared libraries beside it: what this build can read at all."""
    names: set[str] = set()
    for path in (binary, *sorted(binary.parent.glob("lib*.so*"))):
        if path.is_file():
            names |= {name.decode() for name in _VARIABLE.findall(path.read_bytes())}
    return names
