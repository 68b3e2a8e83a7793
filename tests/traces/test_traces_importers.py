"""Each importer on an own-made sample of its format: what it reads, what it leaves out, and why."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_sweep.errors import TraceError
from dflash_sweep.records import Turn
from dflash_sweep.traces.build import Imported, SideFiles, import_trace, read_side_files
from dflash_sweep.traces.canonical import load, save, validate
from dflash_sweep.traces.importers import FORMATS, openai_log
from dflash_sweep.traces.legal import request_problems
from dflash_sweep.traces.normalise import NormaliseOptions
from dflash_sweep.traces.purpose import check_faithful, check_purpose

SAMPLES = {
    "pi.jsonl": "pi",
    "pi.html": "pi",
    "claude_code.jsonl": "claude_code",
    "codex.jsonl": "codex",
    "codex_old.jsonl": "codex",
    "openai_batch.jsonl": "openai",
    "openai_log.jsonl": "openai",
    "openai_rows.jsonl": "openai",
    "llama_server.log": "llama_server",
    "litellm.jsonl": "litellm",
    "swe_agent.traj": "swe_agent",
    "mini_swe_agent.json": "swe_agent",
    "openhands_v0.json": "openhands",
    "openhands_v1.jsonl": "openhands",
    "sharegpt.json": "sharegpt",
    "langfuse.json": "langfuse",
    "otel.jsonl": "otel",
    "otlp.json": "otel",
    "sglang.json": "sglang",
    "mooncake.jsonl": "lengths",
    "weka.json": "lengths",
}


@pytest.fixture
def samples() -> Path:
    return Path(__file__).parent / "samples"


def roles(turn: Turn) -> str:
    """The history as letters: s(ystem) u(ser) a(ssistant) t(ool)."""
    return "".join(message["role"][0] for message in turn.messages)


def shape(done: Imported) -> list[tuple[str, int, str]]:
    return [(turn.conversation, turn.index, roles(turn)) for turn in done.trace.turns]


@pytest.mark.parametrize(("name", "form"), SAMPLES.items())
def test_format_is_found_by_content_and_gives_a_legal_trace(
    name: str, form: str, samples: Path, tmp_path: Path
) -> None:
    renamed = tmp_path / "renamed.bin"  # the name must not matter
    renamed.write_bytes((samples / name).read_bytes())
    done = import_trace(renamed)
    assert done.format == form
    assert done.read == done.used + sum(done.skipped.values())
    stored = save(done.trace, tmp_path / "t.jsonl")
    assert load(tmp_path / "t.jsonl") == stored
    assert validate(tmp_path / "t.jsonl") == ()


def test_every_format_has_a_sample() -> None:
    assert set(SAMPLES.values()) == set(FORMATS)


def test_pi(samples: Path) -> None:
    done = import_trace(samples / "pi.jsonl")
    assert shape(done) == [("c1", 0, "u"), ("c1", 1, "uatu"), ("c2", 0, "u")]
    first, second, after_compaction = done.trace.turns
    call = second.messages[1]["tool_calls"][0]
    assert call == {
        "id": "call_1",  # cut at the bar, as Pi does
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command":"wc -l list.txt"}'},
    }
    assert second.messages[1]["reasoning_content"] == "wc will do."
    assert second.messages[2] == {"role": "tool", "content": "7 list.txt", "tool_call_id": "call_1"}
    assert second.messages[3]["content"] == "[image omitted]"  # Pi sends a result's images in a user message
    assert first.max_tokens == 24
    assert first.recorded.output_tokens is None  # Pi's usage is no exact length
    assert second.recorded.prompt_tokens == 364  # 30 new + 334 from the cache
    assert second.pause_ms == 200.0  # 00:02.000 answer, 00:02.200 tool result
    text = after_compaction.messages[0]["content"]
    assert "<summary>\nlist.txt has seven lines.\n</summary>" in text
    assert "Ran `ls`\n```\nlist.txt\n```" in text  # the entry kept from before the compaction
    assert text.endswith("Thanks. And words?")
    assert done.skipped == {
        "other branch of the session": 1,
        "answer that failed or was stopped": 1,
        "bookkeeping: model_change": 1,
        "bookkeeping: label": 1,
    }
    assert {loss.split(":")[0] for loss in done.trace.header.losses} == {
        "system_prompt", "tool_schemas", "output_tokens",
    }  # fmt: skip


def page(session: dict[str, Any]) -> str:
    """A page as Pi exports it."""
    data = base64.b64encode(json.dumps(session).encode()).decode()
    return (
        f'<!DOCTYPE html>\n<html><body><script id="session-data" type="application/json">{data}</script></body></html>'
    )


def exported(samples: Path, **more: Any) -> dict[str, Any]:
    header, *entries = [json.loads(line) for line in (samples / "pi.jsonl").read_text().splitlines()]
    return {"header": header, "entries": entries, "leafId": entries[-1]["id"], **more}


def test_pi_html_export_is_the_session_with_its_system_prompt_and_tools(samples: Path) -> None:
    file, done = import_trace(samples / "pi.jsonl"), import_trace(samples / "pi.html")
    assert [turn.messages[1:] for turn in done.trace.turns] == [turn.messages for turn in file.trace.turns]
    assert {turn.messages[0]["content"] for turn in done.trace.turns} == {"You are a toy agent."}
    (tool,) = done.trace.turns[0].tools or ()
    assert tool["function"]["parameters"]["required"] == ["command"]
    assert (done.read, done.used, done.skipped) == (file.read + 1, file.used + 1, file.skipped)
    assert {loss.split(":")[0] for loss in done.trace.header.losses} == {"output_tokens"}
    assert "system prompt and tools are those at the time of the export" in done.warnings


def test_pi_html_export_of_tools_without_parameters(samples: Path, tmp_path: Path) -> None:
    session = exported(samples, tools=[{"name": "bash", "description": "run"}])
    (tmp_path / "s.html").write_text(page(session))
    done = import_trace(tmp_path / "s.html")
    assert (done.trace.turns[0].tools or ())[0]["function"]["description"] == "run"
    assert any(loss.startswith("tool_schemas: the export holds names") for loss in done.trace.header.losses)
    own = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
    given = import_trace(tmp_path / "s.html", side=SideFiles(system="s", tools=(own,)))
    assert given.trace.turns[0].tools == (own,)


def test_pi_html_export_goes_to_its_leaf(samples: Path, tmp_path: Path) -> None:
    (tmp_path / "s.html").write_text(page(exported(samples) | {"leafId": "b0000001"}))
    (turn,) = import_trace(tmp_path / "s.html").trace.turns
    assert turn.recorded.content == "From a branch that was left."


@pytest.mark.parametrize(
    "text", ["<html>nothing</html>", '<html><script id="session-data">!!</script>', page({"header": 1})]
)
def test_an_html_page_without_a_session_is_refused_with_what_to_give(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.html").write_text(text)
    with pytest.raises(
        TraceError, match=r"an HTML page without a session in it; of Pi give the session's \.jsonl file"
    ):
        import_trace(tmp_path / "s.html")


def test_claude_code(samples: Path) -> None:
    done = import_trace(samples / "claude_code.jsonl")
    assert shape(done) == [("c1", 0, "u"), ("c1", 1, "uat"), ("c2", 0, "u")]  # c2 is the sub-agent
    first, second, side = done.trace.turns
    assert first.recorded.output_tokens == 24  # two lines of one answer: the larger usage, not 1 + 24
    assert first.recorded.reasoning == "wc will do."
    assert first.recorded.prompt_tokens == 312  # 12 + 300 written to the cache + 0 read from it
    assert second.recorded.prompt_tokens == 346  # 4 + 30 + 312
    assert second.messages[1]["tool_calls"][0]["id"] == "toolu_1"
    assert side.messages[0]["content"] == "Count words."
    assert done.skipped["error shown to the user, no model answer"] == 1


def test_claude_code_with_unknown_parents_and_circles_keeps_everything(samples: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (samples / "claude_code.jsonl").read_text().splitlines()]
    for damaged in ("never-written", "u-5"):  # a parent nobody wrote; a circle of two
        changed = copy.deepcopy(rows)
        next(row for row in changed if row.get("uuid") == "u-3")["parentUuid"] = damaged
        (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, changed)))
        done = import_trace(tmp_path / "s.jsonl")
        assert shape(done) == [("c1", 0, "u"), ("c1", 1, "uat"), ("c2", 0, "u")]
        assert any("parentUuid" in warning for warning in done.warnings)


def test_codex(samples: Path) -> None:
    done = import_trace(samples / "codex.jsonl")
    assert shape(done) == [("c1", 0, "su"), ("c1", 1, "suat"), ("c1", 2, "suatat")]
    first, second, third = done.trace.turns
    assert first.messages[0]["content"] == "You are a toy agent.\n\nWork in the demo folder only."
    assert first.recorded.output_tokens == 24  # the count stands after the tool's output
    folded = second.messages[2]  # reasoning, text and call of one run are one message
    assert folded["content"] == "I count them."
    assert folded["reasoning_content"] == "Use wc."
    assert json.loads(folded["tool_calls"][0]["function"]["arguments"]) == {"cmd": ["wc", "-l", "list.txt"]}
    patch = third.messages[4]["tool_calls"][0]["function"]
    assert json.loads(patch["arguments"]) == {"input": "*** Begin Patch\n+eight\n"}  # free text, wrapped
    assert third.messages[5]["content"] == "done"
    assert done.trace.header.note == "recorded with toy-9b"  # the model that turn_context names
    assert done.skipped["torn last line"] == 1
    assert any("line 16: torn" in warning for warning in done.warnings)


def test_codex_of_both_ages_give_the_same_system_text(samples: Path) -> None:
    assert import_trace(samples / "codex_old.jsonl").trace.turns[0].messages[0] == {
        "role": "system",
        "content": "You are a toy agent.",
    }


def test_codex_compaction_replaces_the_history(samples: Path, tmp_path: Path) -> None:
    lines = (samples / "codex.jsonl").read_text().splitlines()[:10]
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Summary: seven."}]}
    lines.append(json.dumps({"type": "compacted", "payload": {"message": "", "replacement_history": [item]}}))
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Good."}]}
    lines.append(json.dumps({"type": "response_item", "payload": answer}))
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    assert shape(import_trace(tmp_path / "c.jsonl")) == [("c1", 0, "su"), ("c2", 0, "su")]


def test_openai_batch_joins_output_and_strips_what_a_study_sets(samples: Path) -> None:
    done = import_trace(samples / "openai_batch.jsonl")
    assert shape(done) == [("c1", 0, "su"), ("c2", 0, "uat")]
    first, second = done.trace.turns
    assert (first.recorded.content, first.max_tokens) == ("Seven.", 3)
    assert second.max_tokens == 16  # no answer recorded: the request's own limit
    assert second.tools is not None
    assert done.skipped == {"request to /v1/embeddings, not to chat completions": 1}
    assert any("response_format" in warning for warning in done.warnings)
    assert any("temperature differs" in warning for warning in done.warnings)  # only one of the rows sets it
    assert done.trace.header.sampling == {}
    assert done.trace.header.note == "recorded with toy-9b"


def test_openai_log_threads_conversations_by_their_beginning(samples: Path) -> None:
    done = import_trace(samples / "openai_log.jsonl")
    assert shape(done) == [("c1", 0, "u"), ("c1", 1, "uau")]
    assert done.trace.turns[0].recorded.cached_tokens == 0  # zero is a value, not a gap
    assert done.skipped == {"request that failed": 1, "no chat request in the row": 1}


def test_rows_of_messages(samples: Path) -> None:
    done = import_trace(samples / "openai_rows.jsonl")
    assert shape(done) == [("c1", 0, "u"), ("c1", 1, "uau"), ("c2", 0, "su")]
    assert done.trace.turns[1].pause_ms == 250.0
    assert done.trace.turns[2].recorded.content == "Eight."  # the row's last message was its answer


def test_rows_in_delta_mode_are_left_out_with_the_reason(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "x"}], "output_length": 8, "message_mode": "delta"},
            {"messages": [{"role": "user", "content": "y"}], "output_length": 8}]  # fmt: skip
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = import_trace(tmp_path / "t.jsonl")
    assert (done.read, done.used, done.skipped) == (2, 1, {openai_log.DELTA: 1})
    (tmp_path / "t.jsonl").write_text(json.dumps(rows[0]))
    with pytest.raises(
        TraceError, match=r"nothing can be replayed: 1 × row in delta mode.*record the traffic with"
    ) as failed:
        import_trace(tmp_path / "t.jsonl")
    assert "\n" not in str(failed.value)


def test_llama_server_log(samples: Path) -> None:
    done = import_trace(samples / "llama_server.log")
    assert shape(done) == [("c1", 0, "u"), ("c1", 1, "uau")]
    assert (done.read, done.used) == (5, 2)  # requests, not lines
    assert done.trace.turns[0].recorded.output_tokens == 3
    assert done.trace.turns[1].recorded.content is None  # streamed: the log has no answer
    assert any(loss.startswith("answers") for loss in done.trace.header.losses)
    assert done.skipped == {
        "request to /tokenize, not to chat completions": 1,
        "request that failed (status 500)": 1,
        "request body that is cut or holds no messages": 1,
    }


def test_litellm(samples: Path) -> None:
    done = import_trace(samples / "litellm.jsonl")
    assert shape(done) == [("c1", 0, "u"), ("c1", 1, "uau")]
    first, second = done.trace.turns
    assert (first.recorded.ttft_ms, first.recorded.duration_ms) == (400.0, 1400.0)
    assert second.recorded.ttft_ms is None  # not streamed
    assert second.pause_ms == 600.0  # 02.4 to 03.0
    assert second.tools is not None
    assert second.messages[1] == {"role": "assistant", "content": "Seven."}  # explicit nulls are gone
    assert sum(done.skipped.values()) == 4
    assert "user_api_key_hash" not in json.dumps([turn.messages for turn in done.trace.turns])


def test_swe_agent_uses_the_exact_queries(samples: Path) -> None:
    done = import_trace(samples / "swe_agent.traj")
    assert shape(done) == [("c1", 0, "su"), ("c1", 1, "suat")]
    assert done.trace.turns[1].messages[3]["tool_call_id"] == "call_1"  # from the plural tool_call_ids
    assert done.trace.turns[0].recorded.tool_calls[0]["function"]["name"] == "bash"
    assert shape(import_trace(samples / "mini_swe_agent.json")) == [("c1", 0, "su"), ("c1", 1, "suau")]


@pytest.mark.parametrize("name", ["openhands_v0.json", "openhands_v1.jsonl"])
def test_openhands_joins_parallel_calls(name: str, samples: Path) -> None:
    done = import_trace(samples / name)
    assert shape(done) == [("c1", 0, "su"), ("c1", 1, "suatt")]
    assert len(done.trace.turns[0].recorded.tool_calls) == 2
    assert done.trace.turns[0].tools is not None
    assert done.trace.turns[1].messages[3]["content"] == "7 list.txt"
    assert "tool_schemas" not in " ".join(done.trace.header.losses)


def test_openhands_v1_broken_arguments_are_replaced_and_listed(samples: Path) -> None:
    done = import_trace(samples / "openhands_v1.jsonl")
    assert done.trace.turns[1].messages[2]["tool_calls"][1]["function"]["arguments"] == "{}"
    assert any("no JSON replaced by {}" in line for line in done.lines())


def test_openhands_v1_folder_of_event_files(samples: Path, tmp_path: Path) -> None:
    for number, line in enumerate((samples / "openhands_v1.jsonl").read_text().splitlines()):
        (tmp_path / f"event-{number}.json").write_text(line)
    assert import_trace(tmp_path).trace.turns == import_trace(samples / "openhands_v1.jsonl").trace.turns


def test_sharegpt(samples: Path) -> None:
    done = import_trace(samples / "sharegpt.json")
    assert shape(done) == [("c1", 0, "u"), ("c1", 1, "uau"), ("c2", 0, "su"), ("c2", 1, "suat")]
    call = done.trace.turns[3].messages[2]["tool_calls"][0]
    assert call["id"] == done.trace.turns[3].messages[3]["tool_call_id"]
    assert done.trace.turns[2].tools is not None
    assert (done.read, done.used) == (4, 2)


def test_langfuse_is_put_in_order_of_time(samples: Path) -> None:
    done = import_trace(samples / "langfuse.json")
    assert shape(done) == [("c1", 0, "u"), ("c1", 1, "uau")]
    first, second = done.trace.turns
    assert first.recorded.content == "Seven."
    assert (second.recorded.ttft_ms, second.pause_ms) == (500.0, 1600.0)
    assert done.trace.header.sampling == {"temperature": "0"}
    assert first.max_tokens == 3  # the recorded length, not the request's 8 (given as a text)


def test_otel(samples: Path) -> None:
    done = import_trace(samples / "otel.jsonl")
    assert shape(done) == [("c1", 0, "suat")]
    turn = done.trace.turns[0]
    assert turn.messages[2]["reasoning_content"] == "wc will do."
    assert turn.messages[2]["tool_calls"][0]["function"]["arguments"] == '{"command":"wc -l list.txt"}'
    assert turn.tools is not None
    assert done.skipped == {
        "span of operation execute_tool": 1,
        "span without messages (content capture was off)": 1,
    }
    otlp = import_trace(samples / "otlp.json").trace.turns[0]
    assert otlp.messages[1]["content"] == "Say seven.\n[image omitted]"
    assert otlp.recorded.output_tokens == 3


def test_sglang_says_that_answers_are_missing(samples: Path) -> None:
    done = import_trace(samples / "sglang.json")
    assert shape(done) == [("c1", 0, "su"), ("c1", 1, "suau"), ("c2", 0, "u")]
    assert done.trace.turns[0].max_tokens == 220
    assert any(loss.startswith("assistant_answers") for loss in done.trace.header.losses)
    with pytest.raises(TraceError, match="assistant_answers"):
        import_trace(samples / "sglang.json", require_faithful=True)


def test_lengths_share_texts_as_their_hashes_say(samples: Path) -> None:
    done = import_trace(samples / "mooncake.jsonl")
    first, second = (turn.messages[0]["content"].split() for turn in done.trace.turns)
    assert (len(first), len(second)) == (1200, 1800)  # about one word a token
    assert first[:512] == second[:512]  # hash 0 stands for the first 512 tokens of both
    assert first[512:1024] != second[512:1024]
    assert done.trace.turns[0].max_tokens == 52
    assert done.trace.turns[1].pause_ms == 105.0  # arrivals at 0 and 105 ms
    weka = import_trace(samples / "weka.json").trace
    assert [(turn.conversation, turn.index) for turn in weka.turns] == [("c1", 0), ("c2", 0), ("c1", 1)]
    words = [turn.messages[0]["content"].split() for turn in weka.turns]
    assert words[0][:128] == words[2][:128]  # hashes 1 and 2, 64 tokens each


@pytest.mark.parametrize("name", ["mooncake.jsonl", "weka.json"])
def test_lengths_serve_load_and_are_refused_for_decoding(name: str, samples: Path) -> None:
    trace = import_trace(samples / name).trace
    assert trace.header.content_kind == "synthetic"
    check_purpose(trace, "prefill_tps")
    for objective in ("decode_tps", "acceptance_length", "api_tps"):
        with pytest.raises(TraceError, match="invented from lengths"):
            check_purpose(trace, objective)


def test_real_texts_serve_everything(samples: Path) -> None:
    check_purpose(import_trace(samples / "litellm.jsonl").trace, "decode_tps")


# ---------------------------------------------------------------- side files, options, errors


def test_side_files_fill_the_gaps(samples: Path, tmp_path: Path) -> None:
    (tmp_path / "system.md").write_text("You are Pi.")
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "bash", "input_schema": {"type": "object"}}]))
    side = read_side_files(tmp_path / "system.md", tmp_path / "tools.json")
    done = import_trace(samples / "pi.jsonl", side=side, require_faithful=True)
    assert all(turn.messages[0] == {"role": "system", "content": "You are Pi."} for turn in done.trace.turns)
    assert all(turn.tools is not None for turn in done.trace.turns)
    assert {loss.split(":")[0] for loss in done.trace.header.losses} == {"output_tokens"}


def test_a_side_file_that_nothing_needs_is_refused(samples: Path) -> None:
    with pytest.raises(TraceError, match="its own system already"):
        import_trace(samples / "codex.jsonl", side=SideFiles(system="x"))


def test_inferred_tools_are_marked(samples: Path) -> None:
    done = import_trace(samples / "pi.jsonl", side=SideFiles(infer_tools=True))
    for turn in done.trace.turns:  # the same in every turn, also before the first call
        assert turn.tools is not None
        assert turn.tools[0]["function"]["parameters"]["properties"] == {"command": {}}
    assert any("permissive" in loss for loss in done.trace.header.losses)
    with pytest.raises(TraceError, match="not faithful"):
        check_faithful(done.trace)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "empty"), ("   \n", "empty"), ("hello\nworld\n", "no known format"), ('{"a": 1}\n', "no known format"),
     ('[{"id":"c","conversations":[{"from":"gpt","value":"x"}]}]', "nothing can be replayed")],
)  # fmt: skip
def test_unusable_files_are_refused_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(TraceError, match=words) as caught:
        import_trace(tmp_path / "f")
    assert "\n" not in str(caught.value)


def test_unknown_format_name_lists_the_known_ones(samples: Path) -> None:
    with pytest.raises(TraceError, match="claude_code"):
        import_trace(samples / "pi.jsonl", format_name="nope")


@pytest.mark.parametrize(
    ("system", "tools", "words"),
    [("", None, "--system"), (None, "{", "not JSON"), (None, "[]", "JSON array of tools"), (None, "3", "JSON array")],
)
def test_bad_side_files_are_refused(system: str | None, tools: str | None, words: str, tmp_path: Path) -> None:
    for name, text in (("system", system), ("tools", tools)):
        if text is not None:
            (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=words):
        read_side_files(None if system is None else tmp_path / "system", None if tools is None else tmp_path / "tools")
    with pytest.raises(TraceError, match="no such file"):
        read_side_files(tmp_path / "none", None)


def test_a_canonical_trace_can_be_imported_again(samples: Path, tmp_path: Path) -> None:
    first = save(import_trace(samples / "claude_code.jsonl").trace, tmp_path / "t.jsonl")
    again = import_trace(tmp_path / "t.jsonl")
    assert again.format == "dflash-sweep"
    assert again.trace.turns == first.turns
    assert again.changes == ()
    dropped = import_trace(tmp_path / "t.jsonl", options=NormaliseOptions(reasoning="drop")).trace
    assert "reasoning_content" not in json.dumps([turn.messages for turn in dropped.turns])


def test_crlf_bom_and_blank_lines_are_tolerated(samples: Path, tmp_path: Path) -> None:
    data = (samples / "claude_code.jsonl").read_bytes()
    (tmp_path / "t.jsonl").write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n\r\n"))
    done = import_trace(tmp_path / "t.jsonl")
    assert done.trace.turns == import_trace(samples / "claude_code.jsonl").trace.turns
    assert {"byte-order mark skipped", "line ends are CRLF"} <= set(done.warnings)


def test_lone_surrogates_in_a_log_are_replaced_and_listed(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(r'{"messages":[{"role":"user","content":"x \ud83d y"}]}' + "\n")
    done = import_trace(tmp_path / "t.jsonl")
    assert done.trace.turns[0].messages[0]["content"] == "x � y"
    assert any("UTF-16" in line for line in done.lines())


def test_changes_are_counted_once_a_message_not_once_a_turn(samples: Path) -> None:
    lines = import_trace(samples / "swe_agent.traj").lines()
    # One user message with parts, although it stands in the history of both turns.
    assert "  changed: content parts joined to one text (1)" in lines


# ---------------------------------------------------------------- property: damage never gives a traceback

_JUNK = st.sampled_from([None, 0, -1, True, "", "x", "\ud83d", [], {}, [None], {"type": 3}, 1e300, "2030-01-01"])


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            found += _places(inner, (*path, number))
    return found


def _damage(value: Any, path: tuple[Any, ...], junk: Any, remove: bool) -> None:
    for step in path[:-1]:
        value = value[step]
    if remove:
        del value[path[-1]]
    else:
        value[path[-1]] = junk


def _records(path: Path) -> list[Any]:
    text = path.read_text()
    if path.suffix == ".html":
        return [json.loads(base64.b64decode(text.partition('application/json">')[2].partition("<")[0]))]
    try:
        whole = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return whole if isinstance(whole, list) else [whole]


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "llama_server.log"])
def test_damaged_records_give_a_legal_trace_or_one_line(name: str, samples: Path, tmp_path: Path) -> None:
    original = _records(samples / name)
    places = _places(original)
    target = tmp_path / "damaged.jsonl"

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.tuples(st.sampled_from(places), _JUNK, st.booleans()), min_size=1, max_size=4))
    def run(damages: list[tuple[tuple[Any, ...], Any, bool]]) -> None:
        records = copy.deepcopy(original)
        for path, junk, remove in damages:
            try:
                _damage(records, path, copy.deepcopy(junk), remove)
            except (KeyError, IndexError, TypeError):
                continue  # an earlier damage took this place away
        pages = [page(record) for record in records] if name.endswith(".html") else map(json.dumps, records)
        target.write_text("\n".join(pages))
        try:
            done = import_trace(target, format_name=SAMPLES[name])
        except TraceError:
            return
        for turn in done.trace.turns:
            assert request_problems(turn.messages, turn.tools) == ()
        assert done.read == done.used + sum(done.skipped.values())
        save(done.trace, tmp_path / "out.jsonl")
        assert validate(tmp_path / "out.jsonl") == ()

    run()
