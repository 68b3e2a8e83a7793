"""Log cleaning and the llama.cpp family's timing lines: every shape, hostile bytes, linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.engines import logtext
from dflash_sweep.records import Exchange

PREFIXED = """\
0.04.887.250 I slot print_timing: id  0 | task 7 | prompt eval time =     100.00 ms /    20 tokens (    5.00 ms per token,   200.00 tokens per second)
0.04.887.271 I slot print_timing: id  0 | task 7 |        eval time =     500.00 ms /    50 tokens (   10.00 ms per token,   100.00 tokens per second)
0.04.887.271 I slot print_timing: id  0 | task 7 |       total time =     600.00 ms /    70 tokens
0.04.887.280 I slot print_timing: id  0 | task 7 | draft acceptance = 0.50000 (   30 accepted /    60 generated)
"""  # noqa: E501
HEADER = """\
slot print_timing: id  0 | task 7 |
prompt eval time =     100.00 ms /    20 tokens (    5.00 ms per token,   200.00 tokens per second)
       eval time =     500.00 ms /    50 tokens (   10.00 ms per token,   100.00 tokens per second)
      total time =     600.00 ms /    70 tokens
draft acceptance rate = 0.50000 (   30 accepted /    60 generated)
"""
KEYED = """\
INFO [print_timings] prompt eval time     =     100.00 ms /    20 tokens (    5.00 ms per token,   200.00 tokens per second) | tid="1" id_slot=0 id_task=7
INFO [print_timings] generation eval time =     500.00 ms /    50 runs   (   10.00 ms per token,   100.00 tokens per second) | tid="1" id_slot=0 id_task=7
INFO [print_timings]           total time =     600.00 ms | tid="1" id_slot=0 id_task=7
draft acceptance rate = 0.50000 (30 accepted / 60 generated) | tid="1" id_task=7
"""  # noqa: E501


def blocks(log: str | bytes) -> tuple[logtext.TimingBlock, ...]:
    return logtext.timing_blocks(logtext.clean_lines(log))[0]


@pytest.mark.parametrize("shape", [PREFIXED, HEADER, KEYED], ids=["prefixed", "header", "keyed"])
@pytest.mark.parametrize(
    "disguise",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "".join(f"\x1b[32m{line}\x1b[0m\n" for line in text.splitlines()),
        lambda text: text.replace("500.00 ms", "500,00 ms"),
        lambda text: "loading: 10%\rloading: 99%\r" + text,
    ],
    ids=["plain", "crlf", "colours", "comma", "progress"],
)
def test_every_shape_gives_the_same_block(shape: str, disguise: object) -> None:
    assert callable(disguise)
    (block,) = blocks(disguise(shape))
    assert (block.task, block.prompt_ms, block.prompt_tokens) == (7, 100.0, 20)
    assert (block.eval_ms, block.eval_tokens, block.total_ms) == (500.0, 50, 600.0)
    assert (block.accepted, block.generated) == (30, 60)
    assert not block.ambiguous


@pytest.mark.parametrize("prefix", ["[server] ", "host llama[12]: ", "2026-01-02T03:04:05.678Z ", "0.04.887.250 I "])
def test_prefixes_of_collectors_do_not_hide_a_bare_line(prefix: str) -> None:
    bare = "\n".join(prefix + line for line in HEADER.splitlines()[1:])
    (block,) = blocks(bare)
    assert (block.prompt_ms, block.eval_ms) == (100.0, 500.0)


def test_a_line_cut_in_the_middle_is_counted_and_never_read_as_decode_time() -> None:
    found, unparsed = logtext.timing_blocks(logtext.clean_lines("ompt eval time =  100.00 ms /  20 tokens"))
    assert (found, unparsed) == ((), 1)


def test_an_unknown_timing_shape_is_counted() -> None:
    found, unparsed = logtext.timing_blocks(logtext.clean_lines("slot x: eval time -> 500 milliseconds"))
    assert (found, unparsed) == ((), 1)


def test_progress_lines_make_no_block() -> None:
    assert blocks("slot print_timing: id 0 | task 7 | n_decoded =    100, tg =  50.00 t/s, tg_3s =  49.00 t/s\n") == ()


def test_two_messages_written_into_one_line_are_both_read() -> None:
    lines = PREFIXED.splitlines()
    (block,) = blocks(lines[0] + lines[1] + "\n" + lines[3])
    assert (block.prompt_ms, block.eval_ms, block.accepted) == (100.0, 500.0, 30)


def test_prefixed_blocks_of_parallel_slots_are_told_apart_by_task() -> None:
    other = PREFIXED.replace("task 7", "task 8").replace("500.00", "900.00")
    mixed = [line for two in zip(PREFIXED.splitlines(), other.splitlines(), strict=True) for line in two]
    assert [(block.task, block.eval_ms) for block in blocks("\n".join(mixed))] == [(7, 500.0), (8, 900.0)]


def test_bare_blocks_of_parallel_slots_are_marked_ambiguous() -> None:
    log = (
        "slot print_timing: id 0 | task 7 |\nslot print_timing: id 1 | task 8 |\n"
        "       eval time =     900.00 ms /    90 tokens (\n       eval time =     500.00 ms /    50 tokens (\n"
    )
    found = blocks(log)
    assert [block.ambiguous for block in found] == [True, True]
    assert sorted(block.eval_ms or 0 for block in found) == [500.0, 900.0]


def test_figures_of_other_tools_are_left_out() -> None:
    assert blocks("llama_perf_context_print:        eval time =  500.00 ms /    50 runs   (   10.00 ms per token") == ()


def test_nan_is_unknown() -> None:
    (block,) = blocks("       eval time =     -nan ms /     0 tokens (    -nan ms per token")
    assert (block.eval_ms, block.eval_tokens) == (None, 0)


def test_megabyte_lines_and_bad_bytes_cost_linear_time() -> None:
    noise = [
        b"{" * 5_000_000,
        b"eval time = " * 400_000,
        b" " * 5_000_000,
        b"\x1b[" * 2_000_000,
        b"\xff\xfe" * 1_000_000,
    ]
    log = b"\n".join([*noise, PREFIXED.encode()])
    started = time.process_time()
    (block,) = blocks(log)
    logtext.statistics(logtext.clean_lines(log))
    assert block.eval_ms == 500.0
    assert time.process_time() - started < 5.0  # about 0.2 s; a quadratic pattern would take minutes


def test_a_huge_line_keeps_its_head_and_tail() -> None:
    (line,) = logtext.clean_lines(b"start" + b"x" * 1_000_000 + b"end")
    assert len(line.text) <= logtext.MAX_LINE + 3
    assert line.text.startswith("start")
    assert line.text.endswith("end")


def exchange(index: int, log_start: int, send: int = 0, end: int | None = None) -> Exchange:
    return Exchange(turn_index=index, send_ns=send, end_ns=end, log_start=log_start)


def test_spans_run_to_the_next_start_and_are_clipped() -> None:
    answers = [exchange(0, 10), exchange(1, 30), exchange(2, 500)]
    assert logtext.spans(answers, 100) == ((10, 30), (30, 100), (100, 100))
    places = logtext.Places(answers, 100)
    assert [places.owner(offset) for offset in (9, 10, 29, 30, 99)] == [None, 0, 0, 1, 1]
    assert logtext.Places([exchange(0, 5), exchange(1, 5)], 100).owner(50) == 1
    assert logtext.Places([], 100).owner(50) is None


def test_overlapping_requests_are_named() -> None:
    # 0: 0–10, 1: 5–6 inside it, 2: 20–30 alone
    found = logtext.overlapping([exchange(0, 0, 0, 10), exchange(1, 0, 5, 6), exchange(2, 0, 20, 30)])
    assert found == frozenset({0, 1})


STATISTICS = (
    "0.1 I spec common_specu: statistics     draft-dflash: #calls(b,g,a) =    {b}    {g}    {a}, #gen drafts = {g}, "
    "#acc drafts =   {a}, #gen tokens =   {gt}, #acc tokens =  {at}, #mean acc len = 2.67, #acc rate/pos = (0.5, 0.3), "
    "dur(b,g,a) = 0.005, {ms}, 0.009 ms"
)


def test_statistics_are_cumulative_and_differenced() -> None:
    log = STATISTICS.format(b=1, g=9, a=9, gt=63, at=15, ms="320.689") + "\n"
    log += STATISTICS.format(b=2, g=20, a=19, gt=140, at=40, ms="720.689")
    first, second = logtext.statistics(logtext.clean_lines(log))
    assert (first.name, first.draft_calls, first.draft_ms, first.accepted_tokens) == ("draft-dflash", 9, 320.689, 15)
    change = second.since(first)
    # 20 − 9 calls, 140 − 63 and 40 − 15 tokens, 720.689 − 320.689 ms
    assert (change.draft_calls, change.generated_tokens, change.accepted_tokens) == (11, 77, 25)
    assert change.draft_ms == pytest.approx(400.0)
    assert first.since(second).draft_calls is None  # totals went down: another process


def test_old_statistics_with_one_call_count() -> None:
    (one,) = logtext.statistics(
        logtext.clean_lines("statistics dflash: #calls = 12, #gen drafts = 12, #acc drafts = 9")
    )
    assert (one.draft_calls, one.accept_calls, one.draft_ms) == (12, None, None)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(log: bytes) -> None:
    lines = list(logtext.clean_lines(log))
    logtext.timing_blocks(lines)
    logtext.statistics(lines)
    assert all("\n" not in line.text and "\x1b" not in line.text for line in lines)
    assert all(0 <= line.offset < len(log) for line in lines)


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**5)), min_size=1, max_size=5),
    st.lists(st.sampled_from([b"", b"\xff\x00junk\n", b"I slot update_slots: id 0 | task 1 | x\n"]), max_size=4),
)
def test_blocks_survive_noise_between_lines(figures: list[tuple[int, int]], noise: list[bytes]) -> None:
    log = b""
    for task, (centi, tokens) in enumerate(figures):
        log += b"".join(noise)
        figure = f"eval time = {centi / 100:10.2f} ms / {tokens:5d} tokens ("
        log += f"slot print_timing: id  0 | task {task} |        {figure}\n".encode()
    assert [(block.task, round((block.eval_ms or 0) * 100), block.eval_tokens) for block in blocks(log)] == [
        (task, centi, tokens) for task, (centi, tokens) in enumerate(figures)
    ]


@pytest.mark.parametrize(("text", "value"), [("1.5", 1.5), ("1,5", 1.5), ("nan", None), ("-inf", None), ("-", None)])
def test_number(text: str, value: float | None) -> None:
    assert logtext.number(text) == value


def test_pairs() -> None:
    assert logtext.pairs("a=1 b.c=x y ok=true error=- 1=2") == {"a": "1", "b.c": "x", "ok": "true", "error": "-"}
