"""The streaming client against a server whose every byte is scripted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dflash_sweep.client import Client, RequestError
from dflash_sweep.errors import ConfigError, FailureKind
from dflash_sweep.records import Exchange
from fakes.sse_server import Reply, Request, SSEServer, chunk, json_reply, sse, text_answer

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}


def ticking() -> Callable[[], int]:
    """A clock that moves by 1 ms at each look."""
    counter: Iterator[int] = iter(range(0, 10**12, 1_000_000))
    return lambda: next(counter)


def ask(reply: Reply, payload: dict[str, Any] | None = None, **client: Any) -> Exchange:
    with SSEServer(lambda _: reply) as server, Client(server.url, **client) as client_:
        return client_.chat(ASK if payload is None else payload, turn_index=3, log_start=17)


def test_one_turn_with_everything_in_it() -> None:
    seen = ask(
        Reply(
            sse(
                ": keep-alive\n\n",
                chunk(delta={"role": "assistant", "content": None}),
                chunk(delta={"reasoning_content": "hm"}),
                chunk("He"),
                chunk(""),
                chunk("llo"),
                chunk(finish="stop"),
                {"choices": [], "usage": {"completion_tokens": 9}, "timings": {"predicted_n": 9}},
            )
        )
    )
    assert (seen.content, seen.reasoning, seen.finish_reason) == ("Hello", "hm", "stop")
    assert (seen.usage, seen.timings) == ({"completion_tokens": 9}, {"predicted_n": 9})
    assert (seen.error_type, seen.error, seen.http_status) == (None, None, 200)
    assert (seen.turn_index, seen.log_start, seen.response_id) == (3, 17, "chatcmpl-1")
    assert seen.chunks == 3  # the role-only and the empty chunk carry no text; nine tokens came in three chunks
    assert len(seen.chunk_gaps_ms) == 2


def test_times_are_of_the_given_clock_and_in_order() -> None:
    seen = ask(text_answer("a b c"), clock=ticking())
    assert seen.first_token_ns is not None
    assert seen.last_token_ns is not None
    assert seen.headers_ns is not None
    assert seen.end_ns is not None
    assert seen.send_ns < seen.headers_ns < seen.first_token_ns <= seen.last_token_ns < seen.end_ns
    assert sum(seen.chunk_gaps_ms) == pytest.approx((seen.last_token_ns - seen.first_token_ns) / 1e6)


def test_what_is_sent() -> None:
    with SSEServer(lambda _: text_answer()) as server, Client(server.url + "/v1/", api_key="sk-none") as client:
        client.chat(ASK | {"seed": 0, "stream_options": {"continuous_usage_stats": True}}, turn_index=0)
        client.chat(ASK, turn_index=1)
    first, second = server.requests
    assert (first.method, first.path) == ("POST", "/v1/chat/completions")
    assert first.headers["authorization"] == "Bearer sk-none"
    assert first.json["stream"] is True
    assert first.json["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert first.json["seed"] == 0
    assert "timings_per_token" not in second.json
    assert server.connections == 1  # the connection is kept


@pytest.mark.parametrize("framing", ["chunked", "close", "length"])
def test_every_byte_alone_gives_the_same_answer(framing: str) -> None:
    text = "é漢😀\u2028 tail"
    stream = b"".join(sse(chunk(text), chunk(finish="stop")))
    seen = ask(Reply([stream[i : i + 1] for i in range(len(stream))], framing=framing))
    assert (seen.content, seen.error_type) == (text, None)


def test_no_space_after_data_and_multi_line_data() -> None:
    seen = ask(Reply([b'data:{"choices":\r\ndata:[{"delta":{"content":"x"},"finish_reason":"stop"}]}\r\n\r\n']))
    assert (seen.content, seen.error_type) == ("x", None)


def test_finish_reason_without_done_is_complete() -> None:
    assert ask(Reply(sse(chunk("x"), chunk(finish="length"), done=False))).error_type is None


def test_last_event_without_its_blank_line_counts_if_it_is_whole() -> None:
    whole, torn = sse(chunk("x", finish="stop"), done=False)[0].rstrip(b"\n"), sse(chunk("x"), done=False)[0]
    assert ask(Reply([whole])).finish_reason == "stop"
    seen = ask(Reply([torn, whole[:-5]]))
    assert (seen.content, seen.error_type) == ("x", "truncated")


def test_end_without_finish_reason_is_truncated() -> None:
    seen = ask(Reply(sse(chunk("x"), done=False)))
    assert (seen.error_type, seen.content) == ("truncated", "x")
    assert seen.first_token_ns is not None


def test_broken_connection_in_the_middle_keeps_what_came() -> None:
    seen = ask(Reply(sse(chunk("x"), done=False), cut=True))
    assert (seen.error_type, seen.content) == ("truncated", "x")


def test_transfer_without_its_end_after_done_is_complete() -> None:
    assert ask(Reply(sse(chunk("x"), chunk(finish="stop")), cut=True)).error_type is None


def test_connection_closed_before_any_answer() -> None:
    seen = ask(Reply(drop=True))
    assert (seen.error_type, seen.http_status) == ("disconnected", None)


def test_a_request_that_met_the_closing_of_a_kept_connection_is_sent_once_more() -> None:
    replies = iter([text_answer("a"), Reply(drop=True), text_answer("b"), Reply(drop=True), Reply(drop=True)])
    with SSEServer(lambda _: next(replies)) as server, Client(server.url) as client:
        assert client.chat(ASK, turn_index=0).content == "a "
        assert client.chat(ASK, turn_index=1).content == "b "
        assert (len(server.requests), server.connections) == (3, 2)
        # the connection is kept again, is closed again, and the new one is closed too: that is the server's failure
        assert client.chat(ASK, turn_index=2).error_type == "disconnected"
        assert (len(server.requests), server.connections) == (5, 3)


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_the_request_after_an_error_inside_a_stream_goes_over_a_fresh_connection(framing: str) -> None:
    """A server may end the connection of an answer that failed whenever it likes: nothing is sent on it any more."""
    failed = sse(chunk("x"), 'data: {"error": {"message": "boom"}}\n\n', done=False)
    replies = iter([text_answer("a"), Reply(failed, framing=framing), text_answer("b")])
    with SSEServer(lambda _: next(replies)) as server, Client(server.url) as client:
        client.chat(ASK, turn_index=0)
        assert client.chat(ASK, turn_index=1).error == "boom"
        assert client.chat(ASK, turn_index=2).content == "b "
        assert (len(server.requests), server.connections) == (3, 2)


def test_all_kept_connections_may_be_stale() -> None:
    """Turns in parallel leave several connections; a server that closed all of them still gets the next request."""
    both = threading.Barrier(2)
    closing = threading.Event()

    def answer(_: Request) -> Reply:
        if closing.is_set() and server.connections < 3:
            return Reply(drop=True)
        return text_answer("b") if closing.is_set() else Reply([both.wait, *sse(chunk("a"), chunk(finish="stop"))])

    with SSEServer(answer) as server, Client(server.url) as client:
        threads = [threading.Thread(target=client.chat, args=(ASK, index)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        closing.set()
        assert client.chat(ASK, turn_index=2).content == "b "
        assert server.connections == 3


def test_nobody_listens() -> None:
    with SSEServer(lambda _: text_answer()) as server:
        url = server.url
    with Client(url) as client:
        seen = client.chat(ASK, turn_index=0)
    assert seen.error_type == "connect"
    assert seen.end_ns is not None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"error": {"message": "too long", "type": "exceed_context_size_error"}},
            "too long (exceed_context_size_error)",
        ),
        ({"error": "no such model"}, "no such model"),
        ({"detail": "Prompt length (9) exceeds max_ctx (8)"}, "Prompt length (9) exceeds max_ctx (8)"),
    ],
)
def test_http_errors_carry_the_servers_words(body: dict[str, Any], message: str) -> None:
    seen = ask(json_reply(body, 400))
    assert (seen.error_type, seen.http_status, seen.error) == ("http_error", 400, f"HTTP 400: {message}")


def test_an_error_body_that_is_no_json_is_kept_short_and_on_one_line() -> None:
    page = Reply([b"<html>\n" + b"x" * 5000], status=502, content_type="text/html", framing="length")
    seen = ask(page)
    assert seen.error is not None
    assert seen.error.startswith("HTTP 502: <html> xxx")
    assert len(seen.error) < 520


@pytest.mark.parametrize(
    "event",
    [
        'data: {"error": {"message": "boom", "code": 500}}\n\n',
        'event: error\ndata: {"error": {"message": "boom"}}\n\n',
        "event: error\ndata: boom\n\n",
        'event: error\ndata: {"message": "boom"}\n\n',
    ],
)
def test_error_events_inside_a_stream(event: str) -> None:
    seen = ask(Reply(sse(chunk("x"), event, chunk(finish="stop"))))
    assert (seen.error_type, seen.error, seen.content) == ("server_error", "boom", "x")


@pytest.mark.parametrize(("code", "kept"), [(400, 400), (None, None), ("rate_limit", None), (True, None)])
def test_an_error_event_keeps_its_kind_and_code_though_the_stream_began_well(code: object, kept: int | None) -> None:
    event = {"error": {"code": code, "type": "exceed_context_size_error", "message": "too long"}}
    seen = ask(Reply(sse(event, done=False)))
    assert (seen.http_status, seen.error_code) == (200, kept)
    assert (seen.error_type, seen.error) == ("server_error", "too long (exceed_context_size_error)")
    assert seen.finish_reason is None


def test_an_answer_that_is_not_streamed_is_an_error_with_its_text() -> None:
    seen = ask(json_reply({"error": "Unexpected endpoint or method."}))
    assert (seen.error_type, seen.error) == (
        "no_stream",
        "the server did not stream: Unexpected endpoint or method.",
    )


def test_an_event_that_is_no_json_is_an_error() -> None:
    seen = ask(Reply(sse(chunk("x"), "data: {nope}\n\n", chunk(finish="stop"))))
    assert seen.error_type == "bad_json"
    assert seen.error is not None
    assert "{nope}" in seen.error


def test_last_usage_and_timings_win_and_other_top_level_fields_are_kept() -> None:
    seen = ask(
        Reply(
            sse(
                chunk("x", usage={"completion_tokens": 1}, timings={"predicted_n": 1}, usage_note=None),
                chunk(finish="stop", usage={"completion_tokens": 2}),
                {"choices": [], "timings": {"predicted_n": 2}, "metrics": {"num_spec_steps": 1}, "usage": None},
            )
        )
    )
    assert (seen.usage, seen.timings) == ({"completion_tokens": 2}, {"predicted_n": 2})
    assert seen.extra == {"metrics": {"num_spec_steps": 1}}


def test_token_ids_are_kept_where_the_server_gives_them() -> None:
    by_vllm = [chunk("a"), chunk("bc"), chunk(finish="stop")]
    by_vllm[0]["choices"][0]["token_ids"], by_vllm[1]["choices"][0]["token_ids"] = [5], [6, 7]
    assert ask(Reply(sse(*by_vllm))).token_ids == (5, 6, 7)
    by_llama_server = [chunk("a"), chunk(finish="stop")]
    by_llama_server[0]["choices"][0]["logprobs"] = {"content": [{"id": 9, "token": "a", "logprob": -0.1}]}
    assert ask(Reply(sse(*by_llama_server))).token_ids == (9,)
    odd = [chunk("a"), chunk("b"), chunk(finish="stop")]
    odd[0]["choices"][0]["token_ids"], odd[1]["choices"][0]["logprobs"] = ["x"], {"content": [{"token": "b"}]}
    assert ask(Reply(sse(*odd))).token_ids is None


def test_nan_and_infinity_become_none() -> None:
    seen = ask(
        Reply(
            sse(
                'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}],'
                '"timings":{"a":NaN,"b":Infinity,"c":-Infinity,"d":1}}\n\n'
            )
        )
    )
    assert seen.timings == {"a": None, "b": None, "c": None, "d": 1}


def test_tool_calls_are_put_together_by_index() -> None:
    def call(index: int, **fields: Any) -> dict[str, Any]:
        return chunk(delta={"tool_calls": [{"index": index, **fields}]})

    seen = ask(
        Reply(
            sse(
                call(0, id="call_a", type="function", function={"name": "read", "arguments": ""}),
                call(0, function={"arguments": '{"pa'}),
                call(1, id="call_b", type="function", function={"name": "ls", "arguments": "{}"}),
                call(0, function={"arguments": 'th":1}'}),
                chunk(finish="tool_calls"),
            )
        )
    )
    assert seen.tool_calls == (
        {"id": "call_a", "type": "function", "function": {"name": "read", "arguments": '{"path":1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
    )
    assert seen.chunks == 4  # tool-call text is generated text
    assert seen.first_token_ns is not None


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
def test_reasoning_by_any_name(field: str) -> None:
    assert ask(Reply(sse(chunk(delta={field: "hm"}), chunk(finish="stop")))).reasoning == "hm"


def test_chunks_of_odd_shape_are_survived() -> None:
    odd: list[dict[str, Any]] = [
        {"choices": None},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": 5, "tool_calls": [None, {"function": None}]}}]},
        {"choices": {}},
    ]
    assert ask(Reply(sse(*odd, chunk("x", finish="stop")))).content == "x"
    assert ask(Reply(sse("data: [1]\n\n", chunk("x", finish="stop")))).error_type == "bad_json"


def test_lone_surrogates_are_replaced_both_ways() -> None:
    payload = {"messages": [{"role": "user", "content": "a\ud83d b\ud83d\ude00"}]}
    answer = r'data: {"choices":[{"delta":{"content":"x\ud83d"},"finish_reason":"stop"}]}'
    with SSEServer(lambda _: Reply(sse(answer + "\n\n"))) as server, Client(server.url) as client:
        seen = client.chat(payload, turn_index=0)
    assert server.requests[0].json["messages"][0]["content"] == "a\ufffd b😀"
    assert seen.content == "x\ufffd"
    assert seen.error_type is None


def test_a_payload_that_is_no_json_is_a_record_too() -> None:
    assert ask(text_answer(), {"temperature": float("nan")}).error_type == "bad_request"
    assert ask(text_answer(), {"messages": object()}).error_type == "bad_request"


def test_turn_timeout_before_and_within_the_stream() -> None:
    release = threading.Event()
    silent = Reply([*sse(chunk("x"), done=False), release.wait])
    with SSEServer(lambda _: silent) as server, Client(server.url) as client:
        seen = client.chat(ASK, turn_index=0, timeout_s=0.5)
        release.set()
    assert (seen.error_type, seen.content) == ("timeout", "x")
    # 1 ms passes at each look at the clock: sent at 0, headers at 1, the first read at 2 ms is over the limit.
    endless = Reply(sse(*(chunk("x") for _ in range(2000)), chunk(finish="stop")))
    assert ask(endless, clock=ticking(), timeout_s=0.0015).error_type == "timeout"


@pytest.mark.parametrize("headers_first", [True, False])
def test_cancel_breaks_off_a_silent_server_for_good(headers_first: bool) -> None:
    release, asked = threading.Event(), threading.Event()

    def reply(request: Request) -> Reply:
        if request.method == "GET":
            return json_reply({})
        if not headers_first:
            asked.set()
            release.wait()
        return Reply([*sse(chunk("x"), done=False), asked.set, release.wait])

    with SSEServer(reply) as server, Client(server.url) as client:
        client.get_json("/props")  # the turn runs on the connection that this request opened
        seen: list[Exchange] = []
        thread = threading.Thread(target=lambda: seen.append(client.chat(ASK, turn_index=0)))
        thread.start()
        assert asked.wait(5)
        client.cancel()
        thread.join(5)
        assert [exchange.error_type for exchange in seen] == ["cancelled"]
        assert server.connections == 1
        assert client.chat(ASK, turn_index=1).error_type == "cancelled"
        assert client.get_json("/props") == {}
        assert len(server.requests) == 3
        release.set()


def test_many_turns_at_once() -> None:
    def reply(request: Request) -> Reply:
        return text_answer(request.json["messages"][0]["content"])

    seen: dict[int, Exchange] = {}
    with SSEServer(reply) as server, Client(server.url) as client:

        def work(number: int) -> None:
            payload = {"messages": [{"role": "user", "content": f"answer {number}"}]}
            seen[number] = client.chat(payload, turn_index=number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {number: exchange.content for number, exchange in seen.items()} == {n: f"answer {n} " for n in range(8)}


# ---------------------------------------------------------------- small requests


def test_get_json_and_text() -> None:
    with SSEServer(lambda request: json_reply({"path": request.path})) as server, Client(server.url) as client:
        assert client.get_json("/props") == {"path": "/props"}
        assert client.get_text("/metrics") == '{"path": "/metrics"}'


def test_get_is_tried_again_once_after_a_broken_connection() -> None:
    replies = iter([Reply(drop=True), json_reply([1])])
    with SSEServer(lambda _: next(replies)) as server, Client(server.url) as client:
        assert client.get_json("/slots") == [1]
    with SSEServer(lambda _: Reply(drop=True)) as server, Client(server.url) as client:
        with pytest.raises(RequestError) as caught:
            client.get_json("/slots")
        assert len(server.requests) == 2
    assert caught.value.status is None
    assert caught.value.kind is FailureKind.REQUEST_FAILED


def test_get_errors_name_path_status_and_reason() -> None:
    replies = iter([json_reply({"error": {"message": "off"}}, 501), Reply([b"no"], framing="length")])
    with SSEServer(lambda _: next(replies)) as server, Client(server.url) as client:
        with pytest.raises(RequestError, match=r"GET /slots: HTTP 501: off") as caught:
            client.get_json("/slots")
        assert caught.value.status == 501
        with pytest.raises(RequestError, match="no JSON"):
            client.get_json("/props")


@pytest.mark.parametrize(
    ("status", "ok", "loading"), [(200, True, False), (503, False, True), (404, True, False), (500, False, False)]
)
def test_health(status: int, ok: bool, loading: bool) -> None:
    body = {"error": {"message": "Loading model"}} if status != 200 else {"status": "ok"}
    with SSEServer(lambda _: json_reply(body, status)) as server, Client(server.url) as client:
        health = client.health()
    assert (bool(health), health.loading, health.status) == (ok, loading, status)


def test_health_of_nobody() -> None:
    with SSEServer(lambda _: text_answer()) as server:
        url = server.url
    with Client(url) as client:
        health = client.health()
    assert (bool(health), health.status) == (False, None)
    assert health.detail


def test_first_completion_waits_while_the_model_loads() -> None:
    loading = {"error": {"message": "Loading model", "code": 503}}
    replies = iter([json_reply(loading, 503), json_reply(loading, 503), text_answer("x")])
    with SSEServer(lambda _: next(replies)) as server, Client(server.url) as client:
        seen = client.first_completion(ASK, timeout_s=10, poll_s=0.001)
    assert seen.error_type is None
    assert [request.json["max_tokens"] for request in server.requests] == [1, 1, 1]


def test_first_completion_gives_up_on_a_real_error_a_dead_process_and_the_deadline() -> None:
    with SSEServer(lambda _: json_reply({"error": "bad"}, 400)) as server, Client(server.url) as client:
        assert client.first_completion(ASK, timeout_s=10).http_status == 400
        assert len(server.requests) == 1
    with SSEServer(lambda _: json_reply({}, 503)) as server, Client(server.url) as client:
        assert client.first_completion(ASK, timeout_s=10, alive=lambda: False).http_status == 503
        assert client.first_completion(ASK, timeout_s=0.02, poll_s=0.001).error_type is not None


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://host", "http://", "", "http://[::1"])
def test_a_wrong_address_is_refused_with_what_is_allowed(url: str) -> None:
    with pytest.raises(ConfigError, match="http://host:port"):
        Client(url)
