"""The event parser against the standard, and against every way of splitting its input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.sse import SSEEvent, SSEParser


def parse(*pieces: bytes) -> list[SSEEvent]:
    parser = SSEParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def data(*pieces: bytes) -> list[bytes]:
    return [event.data for event in parse(*pieces)]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_all_three_line_ends_end_a_line(end: bytes) -> None:
    stream = end.join([b"data: one", b"", b"data: two", b"data: lines", b"", b""])
    assert data(stream) == [b"one", b"two\nlines"]


def test_line_ends_may_be_mixed_and_crlf_may_be_torn() -> None:
    assert data(b"data: a\r", b"\ndata: b\n\r", b"\ndata: c\r\r") == [b"a\nb", b"c"]
    # a CR at the end of a read ends its line at once: the event does not wait for the next byte
    assert data(b"data: a\r\r") == [b"a"]


def test_only_one_space_after_the_colon_is_dropped_and_none_is_needed() -> None:
    assert data(b"data:x\n\n", b"data: x\n\n", b"data:  x\n\n", b"data: \tx\n\n") == [b"x", b"x", b" x", b"\tx"]


def test_a_field_without_colon_has_an_empty_value() -> None:
    assert data(b"data\n\n") == [b""]
    assert data(b"data\ndata\n\n") == [b"\n"]
    assert data(b"data:\n\n") == [b""]


def test_comments_and_unknown_fields_are_skipped() -> None:
    parser = SSEParser()
    events = parser.feed(b": keep-alive\n:\nretry: 10\nnonsense: 1\n Data: no\ndatax: no\n\n: x\ndata: y\n\n")
    assert [event.data for event in events] == [b"y"]
    assert parser.comments == 3


def test_an_event_without_data_is_not_dispatched_and_its_name_is_forgotten() -> None:
    assert parse(b"event: error\n\ndata: x\n\n") == [SSEEvent(b"x", "message")]


def test_event_name_and_last_id() -> None:
    events = parse(b"event: error\nid: 7\ndata: x\n\ndata: y\n\nid: a\0b\ndata: z\n\nid\ndata: w\n\n")
    assert [(event.event, event.id) for event in events] == [
        ("error", "7"),
        ("message", "7"),  # the id stays, the name does not
        ("message", "7"),  # an id with NUL is ignored
        ("message", ""),
    ]


def test_bom_is_dropped_once_even_if_torn() -> None:
    assert data(b"\xef", b"\xbb", b"\xbfdata: x\n\n") == [b"x"]
    assert data(b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\ndata: y\n\n") == [b"y"]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_unicode_separators_are_text(separator: str) -> None:
    text = f"a{separator}b"
    assert [event.text for event in parse(f"data: {text}\n\n".encode())] == [text]


def test_bytes_that_are_no_utf8_become_the_replacement_character() -> None:
    (event,) = parse(b"data: a\xff\n\n")
    assert event.text == "a\ufffd"


def test_the_cut_off_last_event_is_only_given_by_finish() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\n\ndata: b\ndata: c") == [SSEEvent(b"a")]
    assert parser.finish() == [SSEEvent(b"b\nc")]
    assert SSEParser().finish() == []
    only_bom = SSEParser()
    assert only_bom.feed(b"\xef\xbb") == []
    assert only_bom.finish() == []


LINES = st.lists(
    st.one_of(
        st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=12),
        st.builds("data: {}".format, st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]))),
        st.sampled_from(["", "data", "data:", ": comment", "event: e", "id: 1", "dat", "data: \u2028é漢😀"]),
    ),
    max_size=20,
)


@given(LINES, st.lists(st.sampled_from(["\n", "\r", "\r\n"]), min_size=20, max_size=20), st.data())
def test_splitting_anywhere_changes_nothing(lines: list[str], ends: list[str], choose: st.DataObject) -> None:
    stream = "".join(line + end for line, end in zip(lines, ends, strict=False)).encode()
    whole = parse(stream)
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == whole
    cuts = sorted(choose.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parse(*pieces) == whole


@given(LINES, st.lists(st.sampled_from(["\n", "\r", "\r\n"]), min_size=20, max_size=20))
def test_agrees_with_a_parser_that_sees_the_whole_text(lines: list[str], ends: list[str]) -> None:
    """The standard read literally over the decoded text: normalise line ends, then go line by line."""
    text = "".join(line + end for line, end in zip(lines, ends, strict=False))
    expected: list[tuple[str, str]] = []
    buffer: list[str] = []
    name = ""
    for line in text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        if line == "":
            if buffer:
                expected.append(("\n".join(buffer), name or "message"))
            buffer, name = [], ""
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                buffer.append(value)
            elif field == "event":
                name = value
    assert [(event.text, event.event) for event in parse(text.encode())] == expected
