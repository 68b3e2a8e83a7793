"""Which phases are played, and what each needs."""

from __future__ import annotations

import pytest

from dflash_sweep.errors import ConfigError, StorageError
from dflash_sweep.phases import PHASES, check_inputs, chosen
from dflash_sweep.records import Role, StoredTrial
from fakes.builders import make_stored


def test_phases_come_in_their_own_order() -> None:
    assert chosen(["confirm", "search"]) == ("search", "confirm")
    assert chosen("gate") == ("gate",)


@pytest.mark.parametrize(
    ("value", "said"), [(["baseline"], "phases=baseline: not known; allowed"), ([], "name at least one")]
)
def test_other_phases_are_refused(value: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(value)
    assert said in str(caught.value)


PLAIN, FOUND = make_stored(0, role=Role.BASELINE), make_stored(1)


@pytest.mark.parametrize(
    ("phases", "stored"),
    [
        (PHASES, []),
        (("calibrate",), []),
        (("gate",), [PLAIN]),
        (("search", "confirm"), [PLAIN]),
        (("confirm",), [PLAIN, FOUND]),
    ],
)
def test_phases_whose_inputs_are_there_may_be_played(phases: tuple[str, ...], stored: list[StoredTrial]) -> None:
    check_inputs(phases, stored, lambda trial: True, "s")


@pytest.mark.parametrize(
    ("phases", "stored", "said"),
    [
        (("gate",), [], "phases=gate: study 's' has no measurement of plain decoding yet; play calibrate first"),
        (("search",), [FOUND], "phases=search: study 's' has no measurement of plain decoding"),
        (
            ("calibrate", "confirm"),
            [PLAIN],
            "phases=confirm: study 's' has no measurement of a candidate of the search",
        ),
    ],
)
def test_missing_inputs_are_one_error(phases: tuple[str, ...], stored: list[StoredTrial], said: str) -> None:
    with pytest.raises(StorageError) as caught:
        check_inputs(phases, stored, lambda trial: True, "s")
    assert str(caught.value).startswith(said)
    assert "resume=true" in str(caught.value)


def test_a_failed_run_is_no_input() -> None:
    with pytest.raises(StorageError, match="phases=gate"):
        check_inputs(("gate",), [PLAIN], lambda trial: False, "s")
