"""BeeLlama (Anbeeld/beellama.cpp), a llama.cpp fork with DFlash. Imports the readers and tables of `engines`.

Two engines under one name: until v0.3.2 its own DFlash and tree (dialects A1, A2), from v0.4.0 upstream's
`draft-dflash` (B1, B2). The dialect is read from --help, never from a version number. Spellings, log lines and
failure texts are those of the project's source at v0.1.2, v0.2.0, v0.3.1 and v0.4.0–v0.4.7.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_sweep.engines import probing
from dflash_sweep.engines.base import EngineFacts, KnobDef, LaunchRequest
from dflash_sweep.engines.beellama_knobs import (
    COMMON,
    KNOBS,
    OPTIONS,
    PROFIT_ONLY,
    TREE_ONLY,
    VARIABLES_A,
    VARIABLES_B,
)  # fmt: skip
from dflash_sweep.engines.beellama_logs import shown_settings, turn_counters
from dflash_sweep.engines.buffers import buffer_mib
from dflash_sweep.engines.checks import added_environment, build_name, has_flag, knob_problems, option_values
from dflash_sweep.engines.models import gguf_files
from dflash_sweep.engines.rendering import render
from dflash_sweep.engines.signatures import LLAMA_FAMILY, LLAMA_PHASES, advise, first_failure, signature
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
)  # fmt: skip

HOW = (
    "Build llama-server from github.com/Anbeeld/beellama.cpp (CMake with the GPU back end of your card) "
    "and set engine.binary to it"
)
DIALECTS = {
    "A1": "v0.1.0 to v0.2.0: own DFlash and tree, batch sizes lowered unless given, block of bare log lines",
    "A2": "v0.3.0 to v0.3.2: own DFlash and tree, several speculation types at once",
    "B1": "v0.4.0 to v0.4.4: upstream's draft-dflash, no tree, no profile of cycles, KVarN caches",
    "B2": "from v0.4.5: the same, KVarN for the draft's cache too, acceptance counters",
}
_VERSION = re.compile(r"version: (?:(\S+) \(build (\d+), commit ([0-9a-f]+)\)|(\d+) \(([0-9a-f]+)\))")
_NO_CONFIG_FILES = "/nonexistent"

_SIGNATURES = (
    signature(FailureKind.INVALID_CONFIG, r"using config file: ", "the server read the machine's configuration file"),
    signature(FailureKind.LAUNCH_FAILED, r"failed to create MTP context", "the draft's context could not be made"),
    signature(FailureKind.INVALID_CONFIG, r"KVarN SWA cache overrides require|unsupported KVarN CUDA FlashAttention"
              r" route|turbo KV cache types .* require", "the server refused this pair of cache types"),
    *LLAMA_FAMILY,
    signature(FailureKind.SETTING_NOT_APPLIED, r"cannot enable \w+: .*falling back to the normal KV cache",
              "a cache type was not used"),
    signature(FailureKind.DRAFT_INACTIVE, r"fail-closed after \d+ consecutive invalid", "the server stopped drafting"),
)  # fmt: skip

_FIXED = (
    ("--fit", "off"),
    ("--cache-ram", "0"),
    ("--log-colors", "off"),
    ("--verbosity", "4"),
    ("--reasoning-loop-guard", "off"),
)
_FIXED_SWITCHES = ("--metrics", "--offline", "--log-prefix", "--log-timestamps")


class BeellamaEngine:
    """Adapter of BeeLlama's llama-server."""

    name = "beellama"
    facts = EngineFacts(
        measurement=Measurement.MEASURED,
        first_token_from_prefill=True,
        stages=("step_ms", "draft_ms", "topk_ms", "verify_ms", "accept_ms", "other_ms"),
        needs_draft_model=True,
        metrics_path="/metrics",
        cold_by="first_request",
        note=(
            "Full stage times only before v0.4.0 with options.stage_profile; later builds print only the draft's. "
            "The depth controller is on by default in the server and pinned off here. Every speculation knob needs a "
            "new server from v0.3.0 on. Acceptance length counts the target's own token."
        ),
    )
    knobs = KNOBS
    options = OPTIONS

    def probe(self, settings: EngineSettings) -> EngineBuild:
        """Version and dialect of the binary. Raises EngineMissing, also for a plain llama.cpp."""
        binary = probing.find_binary(settings, ("beellama-server", "llama-server"), HOW)
        version, help_answer = probing.ask([binary, "--version"]), probing.ask([binary, "--help"])
        if help_answer.code != 0:
            raise EngineMissing(f"{binary} --help failed ({probing.reason(help_answer)}). {HOW}")
        help_ = probing.entry_help(help_answer.text)
        dialect = dialect_of(help_)
        if dialect is None:
            raise EngineMissing(f"{binary} is not BeeLlama (no --spec-dm-controller): try engine=llamacpp")
        return EngineBuild(
            engine=self.name,
            version=_version_of(version.text),
            binary=binary,
            binary_sha256=probing.binary_sha256(binary),
            dialect=dialect,
            flags=help_.with_values(),
        )

    def models(self, settings: EngineSettings) -> tuple[ModelFile, ...]:
        """Target and draft by their own metadata. Raises EngineMissing: a file is missing or the two do not fit."""
        return gguf_files(self.name, settings)

    def check(self, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> tuple[str, ...]:
        """What keeps a point from being launched on this build."""
        problems = knob_problems(self.knobs, build, knobs, _spellings(build, knobs))
        if settings.draft_model is None and any(knobs.get(name) is not None for name in _speculative_names()):
            problems.append("engine.draft_model is not set: beellama speculates with a DFlash draft in GGUF form")
        if knobs.get("budget") is not None and knobs.get("draft_max") is None:
            problems.append("budget: draft_max must be given too, because --spec-branch-budget counts branches only")
        if knobs.get("depth_controller") == "fringe" and build.dialect.startswith("B"):
            problems.append(f"depth_controller=fringe: --spec-dm-controller of {build_name(build)} takes profit or off")
        temperature = knobs.get("proposal_temp")
        if isinstance(temperature, int | float) and -1 < temperature < 0:
            problems.append(f"proposal_temp={temperature}: --spec-draft-temp takes −1 (the target's) or 0 and more")
        problems += _cache_problems(build, knobs) + _draft_problems(settings, build, knobs)
        return tuple(problems)

    def effective_point(self, knobs: Knobs) -> Knobs:
        """Knobs that cannot act are None: no branches → top_k, split, budget; controller off → its parameters."""
        point = dict(knobs)
        if "depth_controller" in point:
            point["depth_controller"] = point["depth_controller"] or "off"
        dead: list[str] = []
        if _branches(point) == 0:
            dead += ["budget", *TREE_ONLY]
        elif point.get("top_k") == 1:
            point["top_k"] = 2
        if point.get("depth_controller", "off") != "profit":
            dead += PROFIT_ONLY
        return {name: None if name in dead else value for name, value in point.items()}

    def launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        """Command line and environment. A run without speculation gets no draft model: loading one switches it on."""
        settings, build = request.settings, request.build
        options = option_values(self.name, self.options, settings.options)
        if settings.model is None:
            raise ConfigError("engine.model is not set")
        argv = [build.binary, "--model", settings.model, "--host", request.host, "--port", str(request.port)]
        argv += ["--ctx-size", str(settings.n_ctx), "--parallel", str(request.n_parallel)]
        for flag, value in _FIXED:
            argv += [flag, value] if has_flag(build, flag) else []
        argv += [flag for flag in _FIXED_SWITCHES if has_flag(build, flag)]
        knobs = self.effective_point(request.knobs)
        if request.speculative:
            if settings.draft_model is None:
                raise ConfigError("engine.draft_model is not set: beellama cannot speculate without it")
            argv += ["--spec-draft-model", settings.draft_model, "--spec-type", _spec_type(build)]
            argv += _controller_words(build, knobs)
        else:
            knobs = {name: value for name, value in knobs.items() if name in COMMON}
        words, _ = render(_rendered_defs(), _rendered_values(knobs))
        argv += words
        argv += _option_words(self.options, options, request.speculative)
        return LaunchSpec(argv=(*argv, *settings.extra_args), env=_environment(settings, build, options))

    def request_fields(self, settings: EngineSettings, knobs: Knobs, bucket: str) -> dict[str, Any]:
        """Nothing: timings come with the last chunk, and no speculation knob is read per request from v0.3.0 on."""
        return {}

    def applied(
        self, knobs: Knobs, speculative: bool, props: Mapping[str, Any], slots: Sequence[Any], log: str
    ) -> Knobs:
        """What slots and log show to be in force; `speculative` too, where a slot says so."""
        return shown_settings(knobs, speculative, slots, log)

    def parse_trial(self, exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
        """One record per exchange; JSON timings first, then the log, then the client's clock."""
        return turn_counters(exchanges, log)

    def classify(self, log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
        """The failure that log and exit code show."""
        found = first_failure(_SIGNATURES, log, exit_code, LLAMA_PHASES)
        return advise(
            found,
            FailureKind.OUT_OF_MEMORY,
            "lower n_ctx (from v0.4.0 the draft's cache grows with it), quantise the caches or lower n_ubatch",
        )

    def memory_mib(self, log: str) -> dict[str, float]:
        """Buffers by kind."""
        return buffer_mib(log)


def dialect_of(help_: probing.Help) -> str | None:
    """A1, A2, B1 or B2 from the switches a binary has; None = not BeeLlama."""
    flags = help_.flags
    if "--spec-dflash-cross-ctx" in flags:
        return "A1" if "--tree-budget" in flags or "--draft-topk" in flags else "A2"
    if "--spec-dm-controller" not in flags:
        return None
    draft_types = help_.values.get("--spec-draft-type-k", ())
    newer = "--spec-draft-ubatch-size" in flags or any(kind.startswith("kvarn") for kind in draft_types)
    return "B2" if newer else "B1"


def _version_of(text: str) -> str:
    """`<x.y.z> (build n, commit h)` or `<n> (<h>)`; the binary never names a BeeLlama release."""
    found = _VERSION.search(text)
    if not found:
        return "unknown"
    return f"{found[1]} build {found[2]} {found[3]}" if found[1] else f"build {found[4]} {found[5]}"


def _spec_type(build: EngineBuild) -> str:
    return "dflash" if build.dialect.startswith("A") else "draft-dflash"


def _speculative_names() -> tuple[str, ...]:
    return tuple(knob.name for knob in KNOBS if knob.name not in COMMON and knob.name != "depth_controller")


def _spellings(build: EngineBuild, knobs: Knobs) -> dict[str, str]:
    """Flags that differ from the table on this build."""
    if build.dialect.startswith("A") and knobs.get("depth_controller") == "off":
        return {"depth_controller": "--no-spec-dm-adaptive"}
    return {}


def _branches(knobs: Knobs) -> int | None:
    """Branch nodes beside the main path; None = draft_max is not known, so it cannot be said."""
    budget, depth = knobs.get("budget"), knobs.get("draft_max")
    if not isinstance(budget, int):
        return 0
    return max(0, budget - depth) if isinstance(depth, int) else None


def _cache_problems(build: EngineBuild, knobs: Knobs) -> list[str]:
    problems = []
    sides = [str(knobs.get(name) or "") for name in ("cache_type_k", "cache_type_v")]
    if any(side.startswith("kvarn") for side in sides) and sides[0] != sides[1]:
        problems.append(
            f"cache_type_k={sides[0] or None}, cache_type_v={sides[1] or None}: the server makes both kvarn of "
            "one width; give both the same type"
        )
    if build.dialect.startswith("B"):
        for name in ("cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v"):
            value = str(knobs.get(name) or "")
            if value.startswith("turbo"):
                problems.append(f"{name}={value}: removed in v0.4.0; {build_name(build)} takes another type instead")
    return problems


def _draft_problems(settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> list[str]:
    """A draft file of the other dialect's layout loads for a minute and then fails; a deeper block is clamped."""
    if settings.draft_model is None:
        return []
    from dflash_sweep import gguf_meta

    try:
        architecture = gguf_meta.details(settings.draft_model)["architecture"]
        most = gguf_meta.max_draft_tokens(settings.draft_model)
    except EngineMissing as error:
        return [str(error)]
    problems, depth = [], knobs.get("draft_max")
    if build.dialect.startswith("B") and architecture == "dflash-draft":
        problems.append(
            f"engine.draft_model: an old dflash-draft file; {build_name(build)} loads only upstream's dflash. "
            "Convert it with the project's scripts/convert-dflash-draft-to-upstream.py"
        )
    if isinstance(depth, int) and most is not None and depth > most:
        problems.append(f"draft_max={depth}: the draft's block holds {most} drafts; the server would clamp it to that")
    return problems


def _rendered_defs() -> tuple[KnobDef, ...]:
    return tuple(knob for knob in KNOBS if knob.name != "depth_controller")


def _rendered_values(knobs: Knobs) -> Knobs:
    """Values as the server counts them: the tree's budget without its main path."""
    values = {name: value for name, value in knobs.items() if name != "depth_controller"}
    if values.get("budget") is not None:
        branches = _branches(knobs)
        if branches is None:
            raise ConfigError("budget: draft_max must be given too, because --spec-branch-budget counts branches only")
        values["budget"] = branches
    return values


def _controller_words(build: EngineBuild, knobs: Knobs) -> list[str]:
    """The controller is always named: off unless the point asks for one."""
    choice = str(knobs.get("depth_controller") or "off")
    if build.dialect.startswith("A"):
        return ["--no-spec-dm-adaptive"] if choice == "off" else ["--spec-dm-adaptive", "--spec-dm-controller", choice]
    return ["--spec-dm-controller", choice]


def _option_words(definitions: Sequence[KnobDef], options: Knobs, speculative: bool) -> list[str]:
    given = {
        name: value
        for name, value in options.items()
        if name not in ("release", "stage_profile") and (speculative or not name.startswith("draft_"))
    }
    words, _ = render(definitions, given)
    return list(words)


def _environment(settings: EngineSettings, build: EngineBuild, options: Knobs) -> dict[str, str]:
    """Newer builds read configuration files below XDG_CONFIG_HOME before anything else: it points nowhere."""
    old = build.dialect.startswith("A")
    env = {"XDG_CONFIG_HOME": _NO_CONFIG_FILES}
    if options["stage_profile"]:
        env["GGML_DFLASH_PROFILE" if old else "LLAMA_TRACE"] = "1"
    return env | added_environment(build_name(build), settings.env, VARIABLES_A if old else VARIABLES_B)
