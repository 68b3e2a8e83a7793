"""How a study is begun or taken up again: what must agree with the stored one, and its description.

Imports `store` records, `runner`, `study`, `differences`, `objective`. Nothing here writes or starts anything but
Optuna's own tables of a new study.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from dflash_sweep import differences
from dflash_sweep.differences import Difference, Effect
from dflash_sweep.errors import ConfigError, StorageError
from dflash_sweep.jobs import Job
from dflash_sweep.objective import BY_CLIENT, direction
from dflash_sweep.records import Knobs, Role, StoredTrial, StudyInfo
from dflash_sweep.runner import Context, Runner
from dflash_sweep.samplers import SamplerChoice
from dflash_sweep.study import Study
from dflash_sweep.trial import clock_of

EARLIER = "earlier"
"""Where in a study's provenance the runs of it stand that asked or ran otherwise than the newest."""


def complete(context: Context, point: Knobs) -> Knobs:
    """All knobs of the server that a point stands for; dead ones are None."""
    return context.engine.effective_point({**context.preflight.fixed, **point})


def search_study(context: Context, owner: str) -> Study:
    """The search study, opened or created. Raises StorageError if what is stored has other axes or directions."""
    settings, sampler = context.settings, context.settings.config.sampler

    def effective(point: Knobs) -> Knobs:
        whole = complete(context, point)
        return {name: whole.get(name) for name in point}

    return Study(
        settings.storage_url,
        settings.study_name,
        context.preflight.space,
        directions=[direction(name) for name in settings.objectives],
        sampler=SamplerChoice(
            name=sampler.name,
            n_startup_trials=sampler.n_startup_trials,
            forecast_every=sampler.forecast_every,
            options=sampler.options,
        ),
        seed=settings.config.seed,
        constrained=bool(settings.limits),
        effective=effective,
        owner=owner,
    )


def described(context: Context, stored: StudyInfo | None) -> StudyInfo:
    """The study as it is stored while it runs; what earlier runs of it concluded stays until it is concluded anew."""
    settings, config = context.settings, context.settings.config
    return StudyInfo(
        name=settings.study_name,
        engine=context.engine.name,
        measurement=context.engine.facts.measurement,
        objective=settings.objective,
        objectives=settings.objectives if len(settings.objectives) > 1 else (),
        direction=direction(settings.objective),
        axes=context.preflight.axes,
        seed=config.seed,
        n_trials=config.n_trials,
        created_utc=stored.created_utc if stored else datetime.now(UTC).isoformat(timespec="seconds"),
        confirmed_candidate=stored.confirmed_candidate if stored else None,
        importance=stored.importance if stored else {},
        config=settings.resolved,
        provenance={**context.provenance, **_earlier(stored, settings.resolved, context.provenance)},
    )


def _earlier(stored: StudyInfo | None, config: dict[str, Any], provenance: dict[str, Any]) -> dict[str, Any]:
    """Configurations and provenances of earlier runs of this study that differ from this one, oldest first."""
    if stored is None:
        return {}
    before = {name: value for name, value in stored.provenance.items() if name != EARLIER}
    found = list(stored.provenance.get(EARLIER) or ())
    if differences.of_mappings(stored.config, config) or differences.of_environments(before, provenance):
        found.append({"until_utc": stored.finished_utc, "config": stored.config, "provenance": before})
    return {EARLIER: found} if found else {}


def check_stored(context: Context, stored: StudyInfo, trials: Sequence[StoredTrial]) -> None:
    """Raises StorageError if the stored study asked something else: its values would be taken for ours.

    Looked at are objectives and engine, and of the newest run of plain decoding everything it was asked: model files,
    options, knobs, trace and replay policy; of the newest confirm run its own trace. Another build is no conflict: it
    makes the stored rows stale (see `renewal`).
    """
    old = ",".join(stored.objectives or (stored.objective,))
    for key, before, now in (
        ("objective", old, ",".join(context.settings.objectives)),
        ("engine.name", stored.engine, context.engine.name),
    ):
        if before != now:
            raise _conflict(context, key, before, now)
    for role in (Role.BASELINE, Role.CONFIRM):
        newest = [trial for trial in trials if trial.role is role and not trial.speculative]
        for found in _asked_otherwise(context, newest[-1:]):
            raise _conflict(context, found.key, found.old, found.new)


def _asked_otherwise(context: Context, stored: Iterable[StoredTrial]) -> Iterable[Difference]:
    """What this configuration asks of plain decoding otherwise than a stored run of it."""
    runner = Runner(context, "", ())
    for trial in stored:
        spec = context.store.spec_json(trial.uid)
        if not spec:
            continue
        job = Job(role=trial.role, candidate=None, speculative=False, knobs=context.preflight.plain)
        found = differences.of_specs(spec, differences.spec_data(runner.spec(job)))
        yield from differences.having(found, Effect.CONFLICT)


def _conflict(context: Context, key: str, old: str, new: str) -> StorageError:
    name = context.settings.study_name
    return StorageError(f"{key}={new}: the stored study {name!r} has {old}; restore it or choose another study_name")


def check_measurable(context: Context) -> None:
    """Raises ConfigError for an objective or a constraint of the client's clock where the server's is virtual."""
    probe = Runner(context, "", ()).spec(Job(role=Role.BASELINE, candidate=None, speculative=False))
    if clock_of(context.engine, probe) != "virtual":
        return
    limits = [f"constraints.{limit.name}" for limit in context.settings.limits if limit.name in BY_CLIENT]
    wanted = [f"objective={name}" for name in context.settings.objectives if name in BY_CLIENT]
    for key in (*wanted, *limits):
        raise ConfigError(
            f"{key}: cannot be known here: the client's times are real, this server's clock is virtual; "
            "engine.options.clock=real makes them one"
        )
