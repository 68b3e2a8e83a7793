"""Redaction: what is found, what is left alone, stand-ins that are stable and of the same shape, refusal to share."""

from __future__ import annotations

import json
import re
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_sweep import traces
from dflash_sweep.errors import TraceError
from dflash_sweep.records import RecordedAnswer, Trace, TraceHeader, Turn
from dflash_sweep.traces.redact import check_shareable, redact
from dflash_sweep.traces.sensitive import find
from dflash_sweep.traces.stand_ins import is_stand_in, key_like

# Keys of the right form, made up on the spot: none was ever valid.
LETTERS = "aB3dE5gH7jK9mN1pQ3sT5vX7zA9cD2fG4hJ6kL8nP"


def found(text: str) -> list[tuple[str, str]]:
    return sorted((f.kind, text[f.start : f.end]) for f in find(text))


def one_turn(*texts: str, **recorded: Any) -> Trace:
    messages = tuple({"role": "user", "content": text} for text in texts)
    turn = Turn(conversation="c", index=0, messages=messages, recorded=RecordedAnswer(**recorded))
    return Trace(header=TraceHeader(name="t", source="s"), turns=(turn,))


def content(trace: Trace, position: int = 0) -> str:
    return str(trace.turns[0].messages[position]["content"])


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (f"sk-{LETTERS[:24]}", "OpenAI-style key", LETTERS[:24]),
        (f"sk-ant-api03-{LETTERS}", "Anthropic key", f"api03-{LETTERS}"),
        (f"token ghp_{LETTERS[:36]}!", "GitHub token", LETTERS[:36]),
        (f"hf_{LETTERS[:34]}", "Hugging Face token", LETTERS[:34]),
        ("AKIAQ3EGRIKTVVWXYZ23", "AWS access key", "Q3EGRIKTVVWXYZ23"),
        ("Authorization: Bearer " + LETTERS[:20], "bearer token", LETTERS[:20]),
        ('password = "hunter2pass"', "assigned secret", "hunter2pass"),
        ("DB_PASSWORD=hunter2x", "assigned secret", "hunter2x"),
        ('{\\"api_key\\": \\"q8Zr41Lp\\"}', "assigned secret", "q8Zr41Lp"),
        ("postgres://app:s3cr3tpw@db/x", "password in a URL", "s3cr3tpw"),
        ("write to jane.roe@acme.io.", "e-mail", "jane.roe@acme.io"),
        ("cd /home/jroe/src", "home", "jroe"),
        ("open /Users/jane.roe/x", "home", "jane.roe"),
        ("C:\\\\Users\\\\jroe\\\\x", "home", "jroe"),
        ("jroe@gpu-box:~/src$ ls", "host", "gpu-box"),
        ("curl https://git.acme-inner.de/x", "host", "git.acme-inner.de"),
        ("ping db-7.corp", "host", "db-7.corp"),
        ("ssh 192.168.0.7", "IP address", "192.168.0.7"),
        ("from 10.1.2.3", "IP address", "10.1.2.3"),
    ],
)
def test_finds(text: str, kind: str, value: str) -> None:
    assert (kind, value) in found(text)


@pytest.mark.parametrize(
    "text",
    [
        "password: your_password",
        "api_key=settings.API_KEY",
        "token: str = get_token()",
        "secret = os.environ['SECRET']",
        "max_tokens: 100, secret_name: None",
        "git clone https://github.com/a/b && pip install x",
        "see https://docs.python.org/3/",
        "http://127.0.0.1:8080/v1 and 0.0.0.0",
        "version 1.2.3.4, build 12.0.1.8",
        "the network 10.0.0.0/8",
        "/home/user/project and /Users/username/x",
        "local = threading.local()",
        "mail me at someone@example.org",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "@pytest.fixture(scope='session')",
    ],
)
def test_leaves_alone(text: str) -> None:
    assert found(text) == []


def test_private_keys_go_as_a_whole() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc123+/xyz\nQ9==\n-----END RSA PRIVATE KEY-----"
    clean = content(redact(one_turn(key)).trace)
    assert "MIIEabc123" not in clean
    assert clean.startswith("-----BEGIN RSA PRIVATE KEY-----\n")


def test_stand_ins_keep_the_shape() -> None:
    value = "aB3-dE5_gH7.jK9mN1"
    made = key_like(value, "seed")
    assert made != value
    assert re.sub("[a-z]", "a", re.sub("[A-Z]", "A", re.sub("[0-9]", "0", made))) == "aA0-aA0_aA0.aA0aA0"
    assert made == key_like(value, "seed")
    assert made != key_like(value, "other seed")


@given(st.text(string.ascii_letters + string.digits + "-_", min_size=16, max_size=60), st.text(max_size=5))
def test_a_stand_in_is_known_again(value: str, seed: str) -> None:
    made = key_like(value, seed)
    assert len(made) == len(value)
    if sum(c.isalnum() for c in value) >= 4:
        assert is_stand_in(made)


def test_the_same_value_gets_the_same_stand_in_everywhere() -> None:
    key = f"sk-{LETTERS[:30]}"
    call = {"id": "a", "type": "function", "function": {"name": "run", "arguments": json.dumps({"k": key})}}
    trace = one_turn(f"use {key}", f"again {key}, sk-{LETTERS[5:35]}", content=f"ok {key}", tool_calls=(call,))
    done = redact(trace)
    clean = content(done.trace).removeprefix("use ")
    assert key not in json.dumps([done.trace.turns[0].messages, done.trace.turns[0].recorded.content])
    assert clean in content(done.trace, 1)
    assert done.trace.turns[0].recorded.content == f"ok {clean}"
    arguments = done.trace.turns[0].recorded.tool_calls[0]["function"]["arguments"]
    assert json.loads(arguments) == {"k": clean}  # still the JSON text of an object
    assert sorted(one.count for one in done.found) == [1, 4]  # the other key stands once


def test_a_home_name_is_replaced_where_it_stands_alone_too() -> None:
    clean = content(redact(one_turn("/home/jroe/x was written by jroe, not by jroex")).trace)
    name = clean.split("/")[2]
    assert clean == f"/home/{name}/x was written by {name}, not by jroex"


def test_the_report_never_shows_a_value() -> None:
    key = f"ghp_{LETTERS[:36]}"
    done = redact(one_turn(f"x {key} and jane.roe@acme.io"))
    text = "\n".join(done.lines())
    assert LETTERS[:36] not in text
    assert "jane.roe" not in text
    assert "GitHub token (secret): 1 × 36 characters, first at c turn 0, user" in text


def test_messages_shared_by_turns_are_counted_once() -> None:
    message = {"role": "user", "content": "mail jane.roe@acme.io"}
    turns = tuple(Turn(conversation="c", index=n, messages=(message,)) for n in range(3))
    done = redact(Trace(header=TraceHeader(name="t", source="s"), turns=turns))
    assert [one.count for one in done.found] == [1]


def test_probable_secrets_are_not_shared() -> None:
    trace = one_turn(f"sk-{LETTERS[:24]}", "jane.roe@acme.io")
    with pytest.raises(TraceError, match="OpenAI-style key in c turn 0, user") as caught:
        check_shareable(trace)
    assert LETTERS[:24] not in str(caught.value)
    check_shareable(redact(trace).trace)


def test_redaction_changes_the_hash_and_nothing_else() -> None:
    trace = traces.load(traces.shipped("agent_short"))
    assert redact(trace).trace == trace
    assert redact(trace).lines() == ("nothing found: no keys, tokens, e-mail addresses, homes, hosts or addresses",)
    dirty = one_turn("jane.roe@acme.io")
    assert redact(dirty).trace.header.sha256 != traces.sha256(dirty.turns)


def test_secrets_without_a_gap_between_them_leave_none() -> None:
    together = f"sk-{LETTERS[:26]}ghp_{LETTERS[:36]}jane.roe@acme.io"
    check_shareable(redact(one_turn(together)).trace)


_SECRETS = st.sampled_from(
    [f"sk-{LETTERS[:26]}", f"ghp_{LETTERS[:36]}", "AKIAQ3EGRIKTVVWXYZ23", 'password="hunter2pass"', "/home/jroe/x",
     "jane.roe@acme.io", "https://git.acme-inner.de/", "192.168.0.7", "Bearer " + LETTERS[:30]]
)  # fmt: skip
_FILLER = st.text(st.characters(exclude_categories=["Cs"]), max_size=15).map(lambda text: f" {text} ")


@settings(deadline=None, max_examples=120)
@given(st.lists(_SECRETS | _FILLER, max_size=8))
def test_what_was_redacted_has_no_secret_left(parts: list[str]) -> None:
    done = redact(one_turn("".join(parts))).trace
    assert [f for f in find(content(done)) if f.grade == "secret"] == []
    check_shareable(done)
    again = redact(done)
    assert [one for one in again.found if one.grade == "secret"] == []
