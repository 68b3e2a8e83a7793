"""SGLang (`--speculative-algorithm DFLASH`). Imports the shared readers of `engines`.

Facts of the released wheels 0.5.10.post1 to 0.5.23: DFLASH since 0.5.11, acceptance per request and grammars with
DFLASH since 0.5.19. There is no decode clock per request: the client's is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_sweep.engines import models, probing, prometheus, timings
from dflash_sweep.engines.base import EngineFacts, LaunchRequest
from dflash_sweep.engines.checks import added_environment, build_name, knob_problems, option_values
from dflash_sweep.engines.logtext import number, overlapping, texts
from dflash_sweep.engines.rendering import render
from dflash_sweep.engines.sglang_knobs import COMMON, KNOBS, OLD_SPELLINGS, OPTIONS, VARIABLES
from dflash_sweep.engines.signatures import Phases, advise, first_failure, signature
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
    "Install it (pip install 'sglang>=0.5.19' in an environment of its own) and set engine.binary to that "
    "environment's python"
)
PROBE_TIMEOUT_S = 180.0
DIALECTS = {
    "counters": "0.5.11 to 0.5.18: verify calls counted around one request at a time; no grammars with DFLASH",
    "request-acceptance": "from 0.5.19: acceptance per request, grammars and forced tool calls",
}
FLOOR, REQUEST_ACCEPTANCE = (0, 5, 11), (0, 5, 19)
_K = FailureKind
_SIGNATURES = (
    signature(_K.INVALID_CONFIG, r"error: unrecognized arguments|error: argument ", "SGLang refused the settings"),
    signature(_K.LAUNCH_FAILED, r"DFLASH requires the target model to expose|org_vocab_size",
              "this SGLang cannot run DFlash for this target"),
    signature(_K.HEALTH_TIMEOUT, r"address already in use", "the port was taken"),
    signature(
        _K.OUT_OF_MEMORY,
        r"Not enough memory\. Please try|Prefill out of memory|Decode out of memory|alloc_req_slots runs out of memory"
        r"|CUDA out of memory|OutOfMemoryError",
        "out of memory",
    ),
    signature(_K.CRASHED, r"illegal memory access|Xid 31|device-side assert", "the GPU reported an error"),
    signature(_K.LAUNCH_FAILED, r"scheduler died during initialization|Received sigquit from a child process",
              "a process of the server died while it started"),
    signature(_K.CRASHED, r"SIGQUIT received", "a process of the server died"),
    signature(_K.REQUEST_FAILED, r"DFLASH speculative decoding does not support grammar-constrained decoding",
              "this SGLang refuses grammars and forced tool calls with DFLASH (0.5.19 does not)"),
)  # fmt: skip
_PHASES = Phases(
    ready=re.compile(r"The server is fired up|Uvicorn running on"),
    prefill=re.compile(r"Prefill batch"),
    decode=re.compile(r"Decode batch"),
)
_ROOT_CAUSE = re.compile(r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception): .+)")


class SglangEngine:
    """Adapter of `python -m sglang.launch_server`."""

    name = "sglang"
    facts = EngineFacts(
        measurement=Measurement.MEASURED,
        first_token_from_prefill=True,
        needs_draft_model=True,
        metrics_path="/metrics",
        cold_by="/flush_cache",
        note=(
            "No stage times and no decode clock: decode time is the client's, from the first to the last token. "
            "Its own spec_accept_length counts the prefill token; acceptance is computed again from counts. "
            "All knobs need a new server."
        ),
    )
    knobs = KNOBS
    options = OPTIONS

    def probe(self, settings: EngineSettings) -> EngineBuild:
        """Version and switches. Raises EngineMissing: not there, or older than DFLASH."""
        python = probing.find_binary(settings, ("python3",), HOW)
        said = probing.ask([python, "-c", "import sglang; print(sglang.__version__)"], PROBE_TIMEOUT_S)
        version = said.text.strip().splitlines()[-1].strip() if said.text.strip() else ""
        if said.code != 0 or not re.match(r"\d+\.\d+", version):
            raise EngineMissing(f"{python} cannot import sglang ({probing.reason(said)}). {HOW}")
        if release(version) < FLOOR:
            raise EngineMissing(f"SGLang {version} has no DFLASH: 0.5.11 is the first, 0.5.19 is recommended. {HOW}")
        help_ = probing.ask([python, "-m", "sglang.launch_server", "--help"], PROBE_TIMEOUT_S)
        if help_.code != 0:
            raise EngineMissing(f"{python} -m sglang.launch_server --help failed ({probing.reason(help_)}). {HOW}")
        return EngineBuild(
            engine=self.name,
            version=version,
            binary=python,
            binary_sha256=None,
            dialect="request-acceptance" if release(version) >= REQUEST_ACCEPTANCE else "counters",
            flags=probing.argparse_help(help_.text).with_values(),
        )

    def models(self, settings: EngineSettings) -> tuple[ModelFile, ...]:
        """The models that are on this machine. Raises EngineMissing: no target named, or the pair does not fit."""
        return models.hub_files(*_names(settings), self.name)

    def check(self, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> tuple[str, ...]:
        """What keeps a point from being launched, or makes the server change it."""
        problems = knob_problems(self.knobs, build, knobs, _spellings(build))
        target, draft = _names(settings)
        if target is None:
            problems.append(
                "engine.options.model is not set: sglang needs a model directory or a name such as org/model"
            )
        speculative = any(knobs.get(knob.name) is not None for knob in KNOBS if knob.name not in COMMON)
        draft = str(knobs["draft_model"]) if knobs.get("draft_model") is not None else draft
        if speculative and draft is None:
            problems.append("engine.options.draft_model is not set: speculation needs a DFlash draft")
        depth, window, block = knobs.get("draft_max"), knobs.get("draft_window"), models.block_size(draft)
        if isinstance(depth, int) and block is not None and depth > block - 1:
            problems.append(
                f"draft_max={depth}: the draft's block of {block} holds {block - 1} drafts beside the anchor"
            )
        if isinstance(depth, int) and isinstance(window, int) and window < depth + 1:
            problems.append(f"draft_window={window}: smaller than the block of {depth + 1} (draft_max + 1)")
        return tuple(problems)

    def effective_point(self, knobs: Knobs) -> Knobs:
        """All knobs act by themselves; nothing is dead."""
        return dict(knobs)

    def launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        """Command line. A run without speculation names no draft."""
        settings, build = request.settings, request.build
        options = option_values(self.name, self.options, settings.options)
        target, draft = _names(settings)
        if target is None:
            raise ConfigError("engine.options.model is not set")
        argv = [build.binary, "-m", "sglang.launch_server", "--model-path", target, "--host", request.host]
        argv += ["--port", str(request.port), "--context-length", str(settings.n_ctx), "--enable-metrics"]
        argv += ["--enable-cache-report"]
        knobs = {name: value for name, value in request.knobs.items() if request.speculative or name in COMMON}
        if knobs.get("max_running_requests") is None:
            knobs["max_running_requests"] = request.n_parallel
        if request.speculative:
            knobs["draft_model"] = knobs.get("draft_model") or draft
            if knobs["draft_model"] is None:
                raise ConfigError("engine.options.draft_model is not set: SGLang cannot speculate without it")
            argv += ["--speculative-algorithm", "DFLASH"]
        argv += _words(knobs, build)
        left_out = ("model", "draft_model", "spec_details")
        option_words, _ = render(self.options, {name: v for name, v in options.items() if name not in left_out})
        env = added_environment(build_name(build), settings.env, VARIABLES)
        return LaunchSpec(argv=(*argv, *option_words, *settings.extra_args), env=env)

    def request_fields(self, settings: EngineSettings, knobs: Knobs, bucket: str) -> dict[str, Any]:
        """The model's name, and the wish for acceptance per request."""
        options = settings.options
        fields: dict[str, Any] = {"model": options.get("served_model_name") or _names(settings)[0]}
        if options.get("spec_details", True):
            fields["return_spec_tokens_details"] = True
        return fields

    def applied(
        self, knobs: Knobs, speculative: bool, props: Mapping[str, Any], slots: Sequence[Any], log: str
    ) -> Knobs:
        """What the draft runner says when it starts, and what the server says it changed."""
        shown: Knobs = {}
        for line in texts(log):
            if found := _DRAFT_RUNNER.search(line):
                shown["speculative"] = True
                shown["draft_attention_backend"], shown["draft_max"] = found[1], int(found[2]) - 1
                if window := _WINDOW.search(line):
                    shown["draft_window"] = int(window[1])
            if found := _FALLBACK.search(line):
                shown["draft_attention_backend"] = found[1]
            if _GREEDY_ONLY.search(line):
                shown["target_temperature"] = 0.0
        return shown

    def parse_trial(self, exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
        """One record per exchange from its own details, else from the counters around it."""
        crowded = overlapping(exchanges)
        runner = [found for line in texts(log) if (found := _DRAFT_RUNNER.search(line))]
        depth = int(runner[-1][2]) - 1 if runner else None
        return tuple(turn_counters(one, index not in crowded, depth) for index, one in enumerate(exchanges))

    def classify(self, log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
        """The failure that log and exit code show; for a dead child the first error above the summary line."""
        found = first_failure(_SIGNATURES, log, exit_code, _PHASES)
        if found is not None and found[0] in (_K.LAUNCH_FAILED, _K.CRASHED):
            cause = next((match[1] for line in texts(log) if (match := _ROOT_CAUSE.search(line.strip()))), None)
            if cause is not None:
                return found[0], f"{found[1]} — first error: {cause[:300]}"
        return advise(found, _K.OUT_OF_MEMORY, "lower n_ctx or max_running_requests, or mem_fraction_static")

    def memory_mib(self, log: str) -> dict[str, float]:
        """Weights and KV cache, MiB."""
        found: dict[str, float] = {}
        for line in texts(log):
            for name, pattern in _MEMORY.items():
                for text in pattern.findall(line):
                    value = number(text)
                    if value is not None:
                        found[name] = round(found.get(name, 0.0) + value * 1024.0, 1)
        return found


_MEMORY = {
    "kv": re.compile(r"\b[KV] size: ([\d.]+) GB"),
    "model": re.compile(r"Load weight end\..*\bmem usage=([\d.]+) GB"),
}
_DRAFT_RUNNER = re.compile(r"Initialized DFLASH draft runner\. attention_backend=(\w+),.*\bblock_size=(\d+)")
_WINDOW = re.compile(r"\bdraft_window_size=(\d+)")
_FALLBACK = re.compile(r"does not support attention_backend .* Falling back to '?(\w+)")
_GREEDY_ONLY = re.compile(r"non-greedy verification is unavailable .* falling back to greedy")


def release(version: str) -> tuple[int, ...]:
    """(major, minor, patch) of a version text; a post release counts as its base."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def _names(settings: EngineSettings) -> tuple[str | None, str | None]:
    """(target, draft): directories or names; options win over the file settings, which must be files."""
    pair = (settings.options.get("model"), settings.options.get("draft_model"))
    target, draft = (None if name is None else str(name) for name in pair)
    return target or settings.model, draft or settings.draft_model


def _spellings(build: EngineBuild) -> dict[str, str]:
    """This build's names of switches that were renamed."""
    newer = {knob.name: knob.flag for knob in KNOBS}
    return {name: old for name, old in OLD_SPELLINGS.items() if old in build.flags and newer[name] not in build.flags}


def _words(knobs: Knobs, build: EngineBuild) -> list[str]:
    """Knobs as words: the depth becomes the block (anchor counted), renamed switches get this build's name."""
    values = dict(knobs)
    depth = values.get("draft_max")
    if isinstance(depth, int):
        values["draft_max"] = depth + 1
    # The definition's range is about draft_max; the block may be one longer.
    definitions = tuple(knob for knob in KNOBS if knob.name != "draft_max")
    block = values.pop("draft_max", None)
    words = list(render(definitions, values)[0])
    words += ["--speculative-num-draft-tokens", str(block)] if block is not None else []
    renamed = {knob.flag: old for knob in KNOBS if (old := _spellings(build).get(knob.name)) is not None}
    return [renamed.get(word, word) for word in words]


# ---------------------------------------------------------------- counters


def details(exchange: Exchange) -> Mapping[str, Any]:
    """The request's own speculation details, wherever this version puts them; empty = none."""
    extra = exchange.extra or {}
    places = (extra.get("sglext"), extra.get("meta_info"), exchange.usage)
    for place in places:
        if not isinstance(place, Mapping):
            continue
        inner = place.get("spec_tokens_details")
        inner = inner if isinstance(inner, Mapping) else place
        if "spec_verify_ct" in inner:
            return inner
    return {}


def turn_counters(exchange: Exchange, alone: bool, depth: int | None = None) -> TurnCounters:
    """One turn. `alone`: no other request ran beside it, so counters around it are its own.

    `depth`: drafts per step as the server announced them; with it older servers' draft tokens can be said at all.
    """
    draft = timings.from_usage(exchange)
    timings.from_client_clock(draft, exchange)
    own = details(exchange)
    steps = timings.count(own.get("spec_verify_ct"))
    draft.draft_tokens = timings.count(own.get("spec_num_proposed_drafts"))
    draft.accepted_draft_tokens = timings.count(own.get("spec_num_correct_drafts"))
    histogram = _histogram(own.get("spec_correct_drafts_histogram"))
    change = prometheus.change(exchange.metrics_before, exchange.metrics_after) if alone else None
    if steps is None and change is not None:
        steps = change.count("sglang:spec_verify_calls")
        if steps and draft.decode_tokens is not None:
            # Every verify step gives one token of the target; the rest of the decoded tokens were accepted drafts.
            draft.accepted_draft_tokens = max(0, draft.decode_tokens - steps)
            draft.draft_tokens = None if depth is None else steps * depth
            draft.flag("drafts_derived")
    if change is not None and change.went_back("sglang:generation_tokens"):
        draft.flag("server_restarted")
    timings.plausible(draft, steps)
    if histogram is not None and sum(histogram.values()) != steps:
        draft.flag("histogram_disagrees")
        histogram = None
    return draft.counters(
        verify_steps=steps,
        steps_source=None if steps is None else "printed",
        acceptance_kind="unknown" if draft.draft_tokens is None else "chain",
        acceptance_histogram=histogram,
    )


def _histogram(printed: object) -> dict[int, int] | None:
    if not isinstance(printed, list) or not printed:
        return None
    counts = [timings.count(value) for value in printed]
    known = {index: value for index, value in enumerate(counts) if value is not None}
    return known if len(known) == len(counts) else None
