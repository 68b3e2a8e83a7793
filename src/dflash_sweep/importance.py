"""Which axes a search study's values depend on. Imports optuna, `levelling`."""

from __future__ import annotations

import math
import warnings

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import StudyDirection
from optuna.trial import TrialState

from dflash_sweep.levelling import levelled

MIN_CANDIDATES = 10
"""Below this many the best tenth is a single one."""


def axis_importance(study: optuna.Study) -> dict[str, float]:
    """Axis → importance by PED-ANOVA (Watanabe et al., IJCAI 2023), summing to 1; empty if too few candidates.

    It compares where the best candidates lie with where all lie, so it needs no model; noise counts too. Of several
    objectives it takes the first; candidates of unlike cards are levelled first.
    """
    done = levelled(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    if len(done) < MIN_CANDIDATES or len({trial.values[0] for trial in done}) < 2:
        return {}
    sign = -1.0 if study.directions[0] is StudyDirection.MAXIMIZE else 1.0
    shown = {trial.number: sign * trial.values[0] for trial in done}  # small values are taken for good ones
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it says so each time
        found = get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator(), target=lambda trial: shown[trial.number]
        )
    return {name: float(share) for name, share in found.items() if math.isfinite(share)}
