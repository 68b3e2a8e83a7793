"""Any running OpenAI-compatible server: launched by nobody here, changed only through requests. Imports `engines.*`.

What an answer brings decides how it is read: llama-server's `timings`, vLLM's `metrics`, SGLang's details, LM Studio's
`stats`, durations of Ollama and oMLX; the client's clock where none of these is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_sweep.engines import attach_probe, sglang, timings, vllm
from dflash_sweep.engines.base import EngineFacts, KnobDef, LaunchRequest
from dflash_sweep.engines.checks import knob_problems, option_values
from dflash_sweep.engines.logtext import overlapping
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

_ONE_MODEL = ("llamacpp", "ik_llama", "lucebox", "koboldcpp")
"""Servers with one model, which ignore the name in a request."""

HOW = "Start a server, load a model in it, and give its address: engine.options.url=http://127.0.0.1:8080"

KNOBS: tuple[KnobDef, ...] = (
    KnobDef(name="target_temperature", kind="float", flag="temperature", low=0.0, high=4.0, scope="request",
            doc="The target's sampling temperature; replaces the replay's."),
    KnobDef(name="sampling_top_k", kind="int", flag="top_k", low=0, scope="request", doc="The target's sampler."),
    KnobDef(name="sampling_top_p", kind="float", flag="top_p", low=0.0, high=1.0, scope="request",
            doc="The target's sampler."),
    KnobDef(name="draft_model", kind="str", flag="draft_model", scope="request", since="LM Studio 0.3.10",
            doc="Draft model by name, where the server's API takes one."),
    KnobDef(name="model", kind="str", flag="model", scope="request",
            doc="Another loaded model: another quantisation, or the same one with a draft."),
)  # fmt: skip

OPTIONS: tuple[KnobDef, ...] = (
    KnobDef(name="url", kind="str", flag="(address)", doc="Address of the server, with or without /v1. Required."),
    KnobDef(name="model", kind="str", flag="model", doc="Model of the requests; llama-server needs none."),
    KnobDef(name="api_key_env", kind="str", flag="Authorization", doc="Name of the variable that holds the API key."),
)  # fmt: skip


class AttachEngine:
    """Adapter of a server that is already running."""

    name = "attach"
    facts = EngineFacts(
        measurement=Measurement.MEASURED,
        first_token_from_prefill=True,
        lossless=False,
        accelerator="none",
        launches=False,
        metrics_path="/metrics",
        note=(
            "Only request settings can be searched; other users of the server disturb the measurement. "
            "Decode time is the server's where an answer brings it, else the client's."
        ),
    )
    knobs = KNOBS
    options = OPTIONS

    def probe(self, settings: EngineSettings) -> EngineBuild:
        """Who answers at the address. Raises EngineMissing: nobody, or no OpenAI-compatible server."""
        url = self.url(settings)
        found = attach_probe.identify(url, self.api_key(settings))
        wanted = settings.options.get("model")
        if wanted is not None and found.models and str(wanted) not in found.models:
            raise EngineMissing(f"{url} has no model {wanted!r}; loaded: {', '.join(found.models)}")
        if not found.models:
            raise EngineMissing(f"{url} ({found.kind}) has no model loaded: load one in it first")
        if wanted is None and found.kind not in _ONE_MODEL:
            raise EngineMissing(
                f"{url} ({found.kind}) needs a model's name in every request: set engine.options.model to one of "
                f"{', '.join(found.models)}"
            )
        return EngineBuild(
            engine=self.name,
            version=f"{found.kind} {found.version}",
            binary=url,
            dialect=found.kind,
            flags=frozenset(f"model={name}" for name in found.models),
        )

    def url(self, settings: EngineSettings) -> str:
        """The server's root address. Raises ConfigError: not set or not an address."""
        url = option_values(self.name, self.options, settings.options)["url"]
        if url is None:
            raise ConfigError(f"engine.options.url is not set. {HOW}")
        return attach_probe.root_url(str(url))

    def api_key(self, settings: EngineSettings) -> str | None:
        """The key from the named variable; None = none is named. Raises ConfigError: the variable is not set."""
        name = settings.options.get("api_key_env")
        if name is None:
            return None
        if not os.environ.get(str(name)):
            raise ConfigError(f"engine.options.api_key_env={name}: the variable is not set")
        return os.environ[str(name)]

    def models(self, settings: EngineSettings) -> tuple[ModelFile, ...]:
        """None: the files are the server's."""
        return ()

    def check(self, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> tuple[str, ...]:
        """Launch settings of other engines cannot be searched here."""
        problems = [
            problem.replace(
                "not a knob of attach", "this server is attached, so only requests can differ; restart it yourself"
            )
            for problem in knob_problems(self.knobs, build, knobs)
        ]
        listed = {flag.removeprefix("model=") for flag in build.flags}
        model = knobs.get("model")
        if model is not None and listed and model not in listed:
            problems.append(f"model={model}: not loaded at {build.binary}; loaded: {', '.join(sorted(listed))}")
        for name, value in (
            ("draft_model", settings.draft_model),
            ("model", settings.model),
            ("binary", settings.binary),
        ):
            if value is not None:
                problems.append(f"engine.{name}: an attached server has its own; leave it unset")
        return tuple(problems)

    def effective_point(self, knobs: Knobs) -> Knobs:
        """A greedy target ignores its sampler's other settings."""
        point = dict(knobs)
        if point.get("target_temperature") == 0:
            point |= {name: None for name in ("sampling_top_k", "sampling_top_p") if name in point}
        return point

    def launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        """An attached server has none. Raises ConfigError."""
        raise ConfigError("engine=attach starts no server: it uses the one at engine.options.url")

    def request_fields(self, settings: EngineSettings, knobs: Knobs, bucket: str) -> dict[str, Any]:
        """The point itself: every knob is a field of the request."""
        fields: dict[str, Any] = {}
        if settings.options.get("model") is not None:
            fields["model"] = settings.options["model"]
        for knob in self.knobs:
            if knobs.get(knob.name) is not None and knob.flag is not None:
                fields[knob.flag] = knobs[knob.name]
        return fields

    def applied(
        self, knobs: Knobs, speculative: bool, props: Mapping[str, Any], slots: Sequence[Any], log: str
    ) -> Knobs:
        """Speculation as llama-server's slots show it; nothing else can be seen from outside."""
        slot = next((slot for slot in slots if isinstance(slot, Mapping)), {})
        active = slot.get("speculative")
        return {"speculative": active} if isinstance(active, bool) else {}

    def parse_trial(self, exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
        """One record per exchange by what the answer brings; there is no log."""
        crowded = overlapping(exchanges)
        return tuple(turn_counters(exchange, index not in crowded) for index, exchange in enumerate(exchanges))

    def classify(self, log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
        """Nothing: neither log nor process is ours."""
        return None

    def memory_mib(self, log: str) -> dict[str, float]:
        """Nothing: there is no log."""
        return {}


def turn_counters(exchange: Exchange, alone: bool) -> TurnCounters:
    """One turn, read by the first shape that the answer has."""
    draft = timings.from_timings(exchange)
    if draft is not None:
        return _llama(exchange, draft)
    if isinstance((exchange.extra or {}).get("metrics"), Mapping) or "vllm:" in (exchange.metrics_after or ""):
        return vllm.turn_counters(exchange, alone)
    if sglang.details(exchange) or "sglang:" in (exchange.metrics_after or ""):
        return sglang.turn_counters(exchange, alone)
    draft = timings.from_usage(exchange)
    _constant_usage(draft)
    for read in (_lmstudio, _ollama, _omlx):
        if draft.timing_source is None:
            read(draft, exchange)
    if draft.timing_source is None and "too_few_tokens" not in draft.flags:
        timings.from_client_clock(draft, exchange)
    timings.plausible(draft)
    return draft.counters(acceptance_kind="unknown" if draft.draft_tokens is None else "chain")


def _llama(exchange: Exchange, draft: timings.Draft) -> TurnCounters:
    """llama-server's family; ik_llama.cpp also tells drafts by depth, whose first count is the number of steps."""
    depths = (exchange.timings or {}).get("draft_by_depth")
    steps: int | None = timings.derived_steps(draft)
    source = None if steps is None else "derived"
    if isinstance(depths, list):
        first = next((one for one in depths if isinstance(one, Mapping) and one.get("depth") == 1), None)
        printed = timings.count(first.get("draft_n")) if first is not None else None
        if printed:
            steps, source = printed, "printed"
    if draft.timing_source is None and "too_few_tokens" not in draft.flags:
        timings.from_client_clock(draft, exchange)
    timings.plausible(draft)
    kind = "unknown" if draft.draft_tokens is None else "chain"
    return draft.counters(verify_steps=steps, steps_source=source, acceptance_kind=kind)


def _constant_usage(draft: timings.Draft) -> None:
    """KoboldCpp 1.76 reports 100 / 100 for every request: that is no count, so both become unknown."""
    if draft.prompt_tokens == 100 and draft.output_tokens == 100:
        draft.prompt_tokens = draft.output_tokens = None
        draft.flag("usage_constant")


def _lmstudio(draft: timings.Draft, exchange: Exchange) -> None:
    """`stats`: its rate is (n − 1) / (generation − time to first token) in some versions only, so it is checked."""
    stats = (exchange.extra or {}).get("stats")
    usage = exchange.usage or {}
    if not isinstance(stats, Mapping):
        stats = {}
    for field in ("draft_tokens", "accepted_draft_tokens"):
        name = f"{'total_' if field == 'draft_tokens' else ''}{field}_count"
        value = timings.count(stats.get(name))
        setattr(draft, field, value if value is not None else timings.count(usage.get(name)))
    rate, total, first = (
        timings.finite(stats.get(name)) for name in ("tokens_per_second", "generation_time", "time_to_first_token")
    )
    draft.server_tps_raw = rate if rate is not None else draft.server_tps_raw
    if rate is None or total is None or first is None or draft.output_tokens is None or total <= first:
        return
    seconds = total - first
    if abs((draft.output_tokens - 1) / seconds - rate) <= 0.01 * rate:
        draft.prompt_ms = first * 1000.0
        timings.set_decode(draft, draft.output_tokens - 1, seconds * 1000.0, "json")


def _ollama(draft: timings.Draft, exchange: Exchange) -> None:
    """Durations in nanoseconds, where a proxy passes the native fields on; a missing field is not zero."""
    extra = exchange.extra or {}
    tokens, duration = timings.count(extra.get("eval_count")), timings.finite(extra.get("eval_duration"))
    if tokens is None or duration is None:
        return
    draft.output_tokens = tokens
    prompt_ns = timings.finite(extra.get("prompt_eval_duration"))
    draft.prompt_ms = None if prompt_ns is None else prompt_ns / 1e6
    timings.set_decode(draft, tokens - 1, duration / 1e6, "json")


def _omlx(draft: timings.Draft, exchange: Exchange) -> None:
    """Durations in seconds inside `usage`."""
    usage = exchange.usage or {}
    seconds = timings.finite(usage.get("generation_duration"))
    if seconds is None or draft.output_tokens is None:
        return
    prompt_s = timings.finite(usage.get("prompt_eval_duration"))
    draft.prompt_ms = None if prompt_s is None else prompt_s * 1000.0
    cached = timings.count(usage.get("cached_tokens"))
    draft.cached_tokens = cached if cached is not None else draft.cached_tokens
    draft.server_tps_raw = timings.finite(usage.get("generation_tokens_per_second"))
    timings.set_decode(draft, draft.output_tokens - 1, seconds * 1000.0, "json")
