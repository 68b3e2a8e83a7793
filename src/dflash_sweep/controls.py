"""Plain decoding with a candidate's own settings: threads, cache types and whatever else both servers read.

A setting that is faster because it has more threads is no win of speculation. So every run carries what of its settings
plain decoding reads too, and a finalist is confirmed beside plain decoding as the baseline has it and, where that is
another server, beside plain decoding with the finalist's values. Pure; imports `engines`, `records` and the wording of
settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dflash_sweep.analysis.rows import setting_text
from dflash_sweep.engines import Engine, LaunchRequest
from dflash_sweep.records import Device, EngineBuild, EngineSettings, Knobs


def _server(engine: Engine, settings: EngineSettings, build: EngineBuild) -> Callable[[Knobs], object]:
    """Knobs → command line and environment of plain decoding with them, engine defaults filled in."""
    defaults: Knobs = {knob.name: knob.default for knob in engine.knobs if knob.default is not None}

    def server(knobs: Knobs) -> object:
        launch = engine.launch_spec(
            LaunchRequest(
                settings=settings,
                build=build,
                knobs=defaults | {name: value for name, value in knobs.items() if value is not None},
                speculative=False,
                device=Device(kind="cpu", index=0, name=""),
                host="127.0.0.1",
                port=0,
            )
        )
        return launch.argv, tuple(sorted(launch.env.items()))

    return server


def plain_settings(engine: Engine, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> str | None:
    """What of these knobs plain decoding reads, where it is not the engine's default: "cache_type_k=q8_0 threads=2".

    Two runs of one study with the same text would have the same plain server. None: the engine launches no server,
    nothing is known of it.
    """
    if not engine.facts.launches:
        return None
    server = _server(engine, settings, build)
    own = server(knobs)
    return setting_text({
        name: value
        for name, value in knobs.items()
        if value is not None and server({**knobs, name: None}) != own
    })  # fmt: skip


def controls(
    engine: Engine,
    settings: EngineSettings,
    build: EngineBuild,
    *,
    plain: Knobs,
    finalists: Mapping[int, Knobs],
) -> dict[int, Knobs]:
    """Finalist → knobs of its control. Finalists that share one have it under the first's number; none = no entry.

    A control has those of the finalist's knobs that plain decoding reads too: without them, or with the baseline's
    value in their place, plain decoding would be another server.
    """
    if not engine.facts.launches:
        return {}
    server = _server(engine, settings, build)
    seen, found = {server(plain)}, {}
    for number, knobs in finalists.items():
        own = server(knobs)
        if own not in seen:
            seen.add(own)
            changed = {name: ({**knobs, name: None}, {**knobs, name: plain.get(name)}) for name in knobs}
            found[number] = {
                name: knobs[name]
                for name, others in changed.items()
                if knobs[name] is not None and any(server(other) != own for other in others)
            }
    return found
