"""Two runs side by side: what differs, in words, and what it means for their rows."""

from __future__ import annotations

import gzip
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.differences import Effect, having, of_environments, of_mappings, of_models, of_specs, spec_data, words
from dflash_sweep.records import ModelFile
from fakes.builders import make_spec

MODEL = ModelFile(role="target", path="/models/a.gguf", size_bytes=9, sha256="a" * 64)


def _changed(**changes: Any) -> list[str]:
    spec = make_spec()
    return [str(entry) for entry in of_specs(spec_data(spec), spec_data(replace(spec, **changes)))]


def test_a_spec_does_not_differ_from_itself_nor_from_its_other_runs() -> None:
    spec = make_spec()
    other = replace(spec, uid="s/search/0/3/1", repeat=3, attempt=1, evidence_dir="/elsewhere", timeout_s=1.0)
    assert of_specs(spec_data(spec), spec_data(other)) == ()
    assert words(()) == "nothing"


def test_what_was_asked_for_is_named_by_its_configuration_key() -> None:
    spec = make_spec()
    header = replace(spec.trace.header, name="code_short", sha256="f" * 64)
    found = of_specs(
        spec_data(spec),
        spec_data(
            replace(
                spec,
                policy=replace(spec.policy, max_tokens=256),
                trace=replace(spec.trace, header=header),
                engine=replace(spec.engine, n_ctx=4096, options={**spec.engine.options, "card": "rtx3090"}),
                knobs={**spec.knobs, "budget": None},
            )
        ),
    )
    by_key = {entry.key: entry for entry in found}
    assert (by_key["replay.max_tokens"].old, by_key["replay.max_tokens"].new) == (str(spec.policy.max_tokens), "256")
    assert by_key["trace.sha256"].new == "ffffffffffff…"
    assert by_key["trace.name"].effect is Effect.NOTE
    conflicts = {entry.key for entry in having(found, Effect.CONFLICT)}
    assert conflicts == {"replay.max_tokens", "trace.sha256", "engine.n_ctx", "engine.options.card", "knobs.budget"}
    assert by_key["knobs.budget"].new == "not set"


def test_another_build_is_other_ground_not_another_question() -> None:
    spec = make_spec()
    (found,) = of_specs(spec_data(spec), spec_data(replace(spec, build=replace(spec.build, version="b9"))))
    assert (found.key, found.effect) == ("build.version", Effect.ENVIRONMENT)


def test_a_model_is_known_by_its_content() -> None:
    spec = replace(make_spec(), models=(MODEL,))
    spec = replace(spec, engine=replace(spec.engine, model=MODEL.path))
    moved = replace(
        spec,
        models=(replace(MODEL, path="/other/a.gguf"),),
        engine=replace(spec.engine, model="/other/a.gguf"),
    )
    assert {entry.effect for entry in of_specs(spec_data(spec), spec_data(moved))} == {Effect.NOTE}
    swapped = replace(spec, models=(replace(MODEL, sha256="b" * 64),))
    (found,) = of_specs(spec_data(spec), spec_data(swapped))
    assert str(found) == "models.target.sha256: aaaaaaaaaaaa… → bbbbbbbbbbbb…"
    assert found.effect is Effect.CONFLICT
    assert of_models((MODEL,), (replace(MODEL, sha256="b" * 64),))[0] == found


def test_a_hash_that_one_side_does_not_know_is_no_difference() -> None:
    spec = make_spec()
    unknown = replace(spec, build=replace(spec.build, binary_sha256=None))
    known = replace(spec, build=replace(spec.build, binary_sha256="a" * 64))
    assert of_specs(spec_data(unknown), spec_data(known)) == ()


def test_the_draw_of_a_launch_is_no_difference() -> None:
    spec = make_spec()
    assert _changed(engine=replace(spec.engine, options={**spec.engine.options, "launch_seed": 5})) == []


def test_the_kind_of_a_number_counts() -> None:
    spec = make_spec(knobs={"budget": 1})
    (found,) = of_specs(spec_data(spec), spec_data(replace(spec, knobs={"budget": True})))
    assert str(found) == "knobs.budget: 1 → true"


def test_rows_of_the_first_version_have_todays_defaults() -> None:
    """A field that came later is no difference where the new run leaves it alone, and one where it does not."""
    packed = (Path(__file__).parent / "fixtures" / "schema_0001.db.gz").read_bytes()
    database = sqlite3.connect(":memory:")
    database.deserialize(gzip.decompress(packed))
    (text,) = database.execute("select spec from dfs_trial where uid = 'ddtree/baseline/plain/0/0'").fetchone()
    old = json.loads(text)
    del old["policy"]["fresh_server"]  # as if that field, too, had come later; its default is true
    stored = json.loads(text)
    assert of_specs(old, stored) == ()
    stored["policy"]["fresh_server"] = False
    assert [entry.key for entry in of_specs(old, stored)] == ["replay.fresh_server"]


def test_what_is_no_spec_is_said() -> None:
    with pytest.raises(ValueError, match="no EngineSettings"):
        of_specs({}, spec_data(make_spec()))


ENVIRONMENT = {
    "host": "a", "python": "3.11.7", "packages": {"ray": "2.60.0"}, "cpu": "cpu", "load_average": [1.0],
    "gpu": {"driver": "570.1", "power_limit_w": 450.0, "temperature_c": 40, "ecc": None},
}  # fmt: skip


def test_environments_differ_by_what_lasts() -> None:
    other = {
        **ENVIRONMENT, "host": "b", "packages": {"ray": "2.61.0"}, "load_average": [9.0],
        "gpu": {"driver": "580.2", "power_limit_w": 350.0, "temperature_c": 80, "ecc": True},
    }  # fmt: skip
    found = of_environments(ENVIRONMENT, other)
    assert {entry.key: entry.effect for entry in found} == {
        "gpu.driver": Effect.ENVIRONMENT,
        "gpu.power_limit_w": Effect.ENVIRONMENT,
        "host": Effect.NOTE,
        "packages.ray": Effect.NOTE,
    }
    assert "gpu.driver: 570.1 → 580.2" in words(found)


def test_a_studys_devices_are_compared_whatever_their_order() -> None:
    cards = [{"name": "H200", "uuid": "GPU-1", "driver": "570.1"}, {"name": "H200", "uuid": "GPU-2", "driver": "570.1"}]
    assert of_environments({"devices": cards}, {"devices": cards[::-1]}) == ()
    (found,) = of_environments({"devices": cards}, {"devices": cards[:1]})
    assert str(found) == "devices: [H200 (GPU-1), H200 (GPU-2)] → [H200 (GPU-1)]"


def test_configurations_differ_by_dotted_key() -> None:
    found = of_mappings({"a": {"b": 1, "c": [1]}}, {"a": {"b": 2, "c": [1]}, "d": None, "e": "x"})
    assert list(map(str, found)) == ["a.b: 1 → 2", "e: not set → x"]


@given(st.dictionaries(st.text("ab", min_size=1), st.none() | st.booleans() | st.integers() | st.floats() | st.text()))
def test_nothing_differs_from_itself(data: dict[str, Any]) -> None:
    assert of_mappings(data, dict(data)) == ()
