"""Plain decoding with a finalist's own settings: threads, cache types and whatever else both servers read.

A setting that is faster because it has more threads is no win of speculation. So a finalist is confirmed beside plain
decoding as the baseline has it and, where that is another server, beside plain decoding with the finalist's values.
Pure; imports `engines` and `records`.
"""

from __future__ import annotations

from collections.abc import Mapping

from dflash_sweep.engines import Engine, LaunchRequest
from dflash_sweep.records import Device, EngineBuild, EngineSettings, Knobs


def controls(
    engine: Engine,
    settings: EngineSettings,
    build: EngineBuild,
    *,
    plain: Knobs,
    finalists: Mapping[int, Knobs],
) -> dict[int, Knobs]:
    """Finalist → knobs of its control. Finalists that share one have it under the first's number; none = no entry.

    A knob is shared if it changes plain decoding's command line or environment.
    """
    if not engine.facts.launches:
        return {}

    def server(knobs: Knobs) -> object:
        launch = engine.launch_spec(
            LaunchRequest(
                settings=settings,
                build=build,
                knobs=knobs,
                speculative=False,
                device=Device(kind="cpu", index=0, name=""),
                host="127.0.0.1",
                port=0,
            )
        )
        return launch.argv, tuple(sorted(launch.env.items()))

    baseline = server(plain)
    seen, found = {baseline}, {}
    for number, knobs in finalists.items():
        shared = {
            name: value
            for name, value in knobs.items()
            if value is not None and server({**plain, name: value}) != baseline
        }
        control = {**plain, **shared}
        if server(control) not in seen:
            seen.add(server(control))
            found[number] = control
    return found
