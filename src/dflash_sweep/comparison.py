"""`+study=engines`: the same trace over several engines, each against its own plain decoding, reported side by side.

Each engine is a study of its own (`<name>-<engine>`), driven like any other; engines that cannot run here are skipped
with the reason.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from dflash_sweep import run, settings, terminal
from dflash_sweep.errors import ConfigError
from dflash_sweep.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from dflash_sweep.report import side_by_side
from dflash_sweep.store import Store


def member(cfg: DictConfig, name: str, engine: DictConfig) -> DictConfig:
    """The configuration of one engine's study: the common one with this engine and what `compare` says of it."""
    own = OmegaConf.create(OmegaConf.to_container(cfg, resolve=False))
    assert isinstance(own, DictConfig), "a mapping stays one"
    own.engine = OmegaConf.merge(engine, cfg.compare[name] or {})
    own.study_name = f"{cfg.study_name}-{name}"
    own.compare = {}
    return own


def group(folder: Path, name: str) -> DictConfig:
    """An engine's configuration group. Raises ConfigError, listing the engines there are."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(entry.stem for entry in folder.glob("*.yaml")))
        raise ConfigError(f"compare.{name}: there is no such engine; allowed: {known}")
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig), "an engine's group is a mapping"
    return loaded


def run_comparison(cfg: DictConfig, engine_groups: Path, launch_dir: Path, run_dir: Path) -> int:
    """Run every engine of `compare` that can run here; returns the worst exit code of those that ran.

    `engine_groups` is the folder of the engines' configuration. Raises ConfigError if none can run here.
    """
    groups = {str(name): group(engine_groups, str(name)) for name in cfg.compare}
    skipped: dict[str, str] = {}
    studies: dict[str, int] = {}
    for name, engine in groups.items():
        try:
            finished = run.drive(member(cfg, name, engine), launch_dir, run_dir / name)
        except ConfigError as error:
            skipped[name] = " ".join(str(error).split())
            terminal.tell(str(cfg.progress), str(cfg.study_name), f"{name}: skipped — {skipped[name]}")
            continue
        studies[finished.study] = finished.code
        if finished.code == EXIT_INTERRUPTED:
            return EXIT_INTERRUPTED
    if not studies:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise ConfigError(f"compare: none of these engines can run here: {reasons}")
    config = settings.merge(cfg)
    folder = (launch_dir / config.report.dir / config.study_name).resolve()
    with Store(settings.absolute_url(config.storage.url, launch_dir), create=False) as store:
        lines = []
        for study in studies:
            info = store.study(study)
            if info is not None:
                lines.append(side_by_side.line(info, store.trials(study)))
    path = side_by_side.write(folder, config.study_name, config.trace.path, lines, skipped)
    code = EXIT_FAILED if EXIT_FAILED in studies.values() else EXIT_OK
    page = side_by_side.page(config.study_name, config.trace.path, lines, skipped)
    terminal.close(config.progress, config.study_name, code, page, path)
    return code
