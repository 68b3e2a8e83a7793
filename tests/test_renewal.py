"""A study taken up on other ground: what is stale, what is due again, and under which names."""

from __future__ import annotations

from dataclasses import replace

from dflash_sweep import renewal
from dflash_sweep.jobs import repeats, unfinished
from dflash_sweep.records import Device, EngineBuild, ModelFile, Role, StoredTrial
from fakes.builders import make_result, make_stored

BUILD = EngineBuild(engine="llamacpp", version="b1", binary="server", binary_sha256="1" * 64)
MODEL = ModelFile(role="target", path="a.gguf", size_bytes=1, sha256="a" * 64)
CARD = Device(kind="gpu", index=0, name="H200", uuid="GPU-1")
PROVENANCE = {"devices": [{"name": "H200", "uuid": "GPU-1", "driver": "570.1"}]}
NOW = renewal.ground(PROVENANCE, BUILD, (MODEL,), (CARD,))


def _plain(repeat: int, number: int, driver: str = "570.1") -> StoredTrial:
    uid = f"s/baseline/plain/{repeat}/0"
    environment = {
        "gpu": {"driver": driver},
        "build": {"sha256": "1" * 64},
        "models": [{"role": "target", "sha256": "a" * 64}],
        "devices": ["GPU-1"],
    }
    result = replace(make_result(uid), device=CARD, environment=environment)
    stored = make_stored(number)
    return replace(
        stored, uid=uid, role=Role.BASELINE, repeat=repeat, speculative=False, candidate=None, build="b1", result=result
    )


def test_the_same_ground_makes_nothing_stale() -> None:
    trials = [_plain(0, 0), _plain(1, 1)]
    assert renewal.stale(trials, NOW) == {}
    assert renewal.note({}) is None
    assert renewal.stale([], NOW) == {}


def test_every_kind_of_change_is_found_and_said() -> None:
    trials = [_plain(0, 0), _plain(1, 1)]
    new_card = replace(CARD, uuid="GPU-7")
    for now, said in (
        (renewal.ground({"devices": [{"driver": "580.2"}]}, BUILD, (MODEL,), (CARD,)), "driver 570.1 → 580.2"),
        (renewal.ground(PROVENANCE, replace(BUILD, version="b2"), (MODEL,), (CARD,)), "build b1 → b2"),
        (
            renewal.ground(PROVENANCE, replace(BUILD, binary_sha256="2" * 64), (MODEL,), (CARD,)),
            "binary 1111111111111111 → 2222222222222222",
        ),
        (
            renewal.ground(PROVENANCE, BUILD, (replace(MODEL, sha256="b" * 64),), (CARD,)),
            "model files target aaaaaaaaaaaaaaaa → target bbbbbbbbbbbbbbbb",
        ),
        (renewal.ground(PROVENANCE, BUILD, (MODEL,), (new_card,)), "device GPU-1 → GPU-7"),
    ):
        changes = renewal.stale(trials, now)
        assert changes == dict.fromkeys((trial.uid for trial in trials), said)
        assert renewal.note(changes) == (
            f"Changed since 2 stored run(s): {said}. They are stale: plain decoding is measured again."
        )


def test_what_is_not_known_now_counts_as_unchanged() -> None:
    assert renewal.stale([_plain(0, 0)], renewal.ground({}, BUILD, (), (CARD,))) == {}


def test_stale_runs_are_due_again_behind_the_old_ones() -> None:
    """Two old runs of three; after the change three new ones are due, repeats 2, 3 and 4; one is done: two are left."""
    jobs = repeats(Role.BASELINE, 3, speculative=False, knobs={})
    old = [_plain(0, 0), _plain(1, 1)]
    assert [job.repeat for job in unfinished(jobs, "s", old, 2)] == [2]
    stale = renewal.stale(old, {**NOW, "driver": "580.2"})
    assert [job.uid("s") for job in unfinished(jobs, "s", old, 2, stale)] == [
        "s/baseline/plain/2/0",
        "s/baseline/plain/3/0",
        "s/baseline/plain/4/0",
    ]
    again = [*old, _plain(2, 2, driver="580.2")]
    stale = renewal.stale(again, {**NOW, "driver": "580.2"})
    assert sorted(stale) == ["s/baseline/plain/0/0", "s/baseline/plain/1/0"]
    assert [job.repeat for job in unfinished(jobs, "s", again, 2, stale)] == [3, 4]
