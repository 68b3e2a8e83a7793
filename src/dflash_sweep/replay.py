"""Plays a trace against a server, turn by turn, by an explicit policy. Imports `arms`, `client`, `payload`,
`live_history`, `turn_marks`, `records`, `errors`.

Teacher-forced: every turn sends the recorded history. Free-running: the server's own answers go into the history.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash_sweep import arms
from dflash_sweep.client import Client, RequestError
from dflash_sweep.live_history import NEXT_TURN_SKIPPED, LiveHistory
from dflash_sweep.payload import build_payload, check_policy, prompt_sha256, text_sha256
from dflash_sweep.records import Exchange, ReplayPolicy, Trace, Turn, TurnCounters
from dflash_sweep.turn_marks import CACHE_NOT_COLD, COLD_TOLERANCE_TOKENS, turn_marks

__all__ = [
    "WARMUP_CONVERSATION",
    "PlayedTurn",
    "build_payload",
    "check_policy",
    "marks_of",
    "play",
    "prompt_sha256",
    "text_sha256",
    "warmup_turn",
]

WARMUP_CONVERSATION = "(warm-up)"
WARMUP_MAX_TOKENS = 64
COMPRESSED_PAUSE_S = 1.0
"""Pauses "compress": no pause is longer than this, so that the order of events stays and the waiting does not."""

LOG_QUIET_S, LOG_QUIET_TRIES = 0.001, 20
"""A server's log writer is a thread of its own: the next turn starts when the log has stood still for 1 ms."""

_WARMUP_TEXTS = (
    "Name the months of the year in order, one on each line, each with its number of days.",
    "Explain in a few sentences how a bicycle stays upright while it rolls.",
    "Write a function in Python that returns the greatest common divisor of two numbers, and say how it works.",
    "Describe what happens to the water in a kettle from the moment it is switched on until it boils.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """One turn as it was sent (in a free-running replay `turn.messages` are the live ones) and what came back.

    `order` counts the requests of the replay from 0, warm-up included, in the order they were sent. `flags` are marks
    of live_history: history_restarted, tool_result_missing, tool_arguments_replaced, next_turn_skipped. `cold`: it was
    asked without the prompt cache though the policy has it on, as the first turn of an arm is.
    """

    turn: Turn
    exchange: Exchange
    warmup: bool
    order: int
    prompt_sha256: str
    flags: tuple[str, ...] = ()
    cold: bool = False


def warmup_turn(number: int) -> Turn:
    """A warm-up turn: a text that no trace holds, another one for each number."""
    text = f"Warm-up {number + 1}. {_WARMUP_TEXTS[number % len(_WARMUP_TEXTS)]}"
    return Turn(
        conversation=WARMUP_CONVERSATION,
        index=number,
        messages=({"role": "user", "content": text},),
        max_tokens=WARMUP_MAX_TOKENS,
    )


def play(
    trace: Trace,
    policy: ReplayPolicy,
    client: Client,
    *,
    request_fields: Callable[[str], dict[str, Any]],
    log_size: Callable[[], int],
    on_turn: Callable[[Turn, Exchange], bool] | None = None,
    metrics_path: str | None = None,
    deadline_ns: int | None = None,
    arm_offset: int = 0,
) -> tuple[PlayedTurn, ...]:
    """Play warm-up and trace; returns the turns in the order they were sent, failed ones included.

    `request_fields` gives the engine's extra request fields for a bucket; `log_size` the server's log size in bytes.
    `on_turn` is called after every measured turn, one call at a time; False stops the replay and cancels the client:
    other turns in flight are broken off and not returned. A client cancelled by others stops the replay as well.
    `metrics_path` is read around every turn if one conversation runs at a time. No turn starts after `deadline_ns`
    (time.monotonic_ns), and none outlasts it. Conversations are played in the order they begin; with concurrency N up
    to N at once, each in its own order, and in each arm of the policy, one after the other (see `arms`;
    `arm_offset` moves on which arm begins, so that repeats do not all begin with the same one).

    Raises ConfigError for a policy that cannot be followed. What server and network do is in the exchanges. An
    interrupt passes through at once.
    """
    check_policy(policy)
    player = _Player(trace, policy, client, request_fields, log_size, on_turn, metrics_path, deadline_ns)
    for number in range(policy.warmup_turns):
        player.send(warmup_turn(number), warmup=True)
    conversations: dict[str, list[Turn]] = {}
    for turn in trace.turns:
        conversations.setdefault(turn.conversation, []).append(turn)
    numbered = list(enumerate(conversations.values(), arm_offset))
    if policy.concurrency == 1:
        for number, turns in numbered:
            player.play_conversation(number, turns)
    else:
        _play_together(player, numbered, policy.concurrency)
    return tuple(sorted(player.played, key=lambda played: played.order))


def marks_of(
    played: Sequence[PlayedTurn], counters: Sequence[TurnCounters], policy: ReplayPolicy
) -> tuple[tuple[str, ...], ...]:
    """What each turn's counters are to be flagged with: how it was played, and where the server's own counts show that
    it did not go as the policy promised (prompt cache). All turns of one replay, in order, warm-up included."""
    exchanges = [entry.exchange for entry in played]
    marks = turn_marks([_told_apart(entry, policy) for entry in played], exchanges, counters, policy)
    return tuple(
        (*entry.flags, *more, *_warm_marks(entry, figures))
        for entry, more, figures in zip(played, marks, counters, strict=True)
    )


def _told_apart(entry: PlayedTurn, policy: ReplayPolicy) -> Turn:
    """The turn under a conversation of its arm's own: what went before in another arm is not its history."""
    if len(policy.arms) == 1 or entry.warmup:
        return entry.turn
    return replace(entry.turn, conversation=f"{entry.turn.conversation}#{entry.exchange.arm}")


def _warm_marks(entry: PlayedTurn, counters: TurnCounters) -> tuple[str, ...]:
    warm = entry.cold and (counters.cached_tokens or 0) > COLD_TOLERANCE_TOKENS
    return (CACHE_NOT_COLD,) if warm else ()


def _play_together(player: _Player, conversations: list[tuple[int, list[Turn]]], concurrency: int) -> None:
    """Threads take conversations from a queue. The first error in one of them stops all and is raised here."""
    todo: queue.SimpleQueue[tuple[int, list[Turn]]] = queue.SimpleQueue()
    for conversation in conversations:
        todo.put(conversation)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not player.stopped.is_set():
                player.play_conversation(*todo.get_nowait())
        except queue.Empty:
            return
        except BaseException as error:  # noqa: BLE001 (carried to the caller's thread and raised there)
            errors.append(error)
            player.stop()

    # Daemon threads: an interrupt must not wait for a server that is silent.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(concurrency, len(conversations)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        player.stop()
        raise
    if errors:
        raise errors[0]


class _Player:
    """The state of one replay. `send` and `play_conversation` may run in several threads."""

    def __init__(
        self,
        trace: Trace,
        policy: ReplayPolicy,
        client: Client,
        request_fields: Callable[[str], dict[str, Any]],
        log_size: Callable[[], int],
        on_turn: Callable[[Turn, Exchange], bool] | None,
        metrics_path: str | None,
        deadline_ns: int | None,
    ) -> None:
        self._template_kwargs = trace.header.template_kwargs
        self._policy, self._client = policy, client
        self._request_fields, self._log_size, self._on_turn = request_fields, log_size, on_turn
        self._metrics_path = metrics_path if policy.concurrency == 1 else None
        self._deadline_ns = deadline_ns
        self._lock = threading.Lock()
        self._next_order = 0
        self.stopped = threading.Event()
        self.played: list[PlayedTurn] = []

    def stop(self) -> None:
        self.stopped.set()
        self._client.cancel()

    def play_conversation(self, number: int, turns: Sequence[Turn]) -> None:
        """Play one conversation, the n-th, in every arm."""
        if len(self._policy.arms) == 1 and self._policy.mode == "free_running":
            self._play_live(turns)
            return
        for arm in arms.in_order(self._policy, number):
            self._play_arm(turns, arm)

    def _play_arm(self, turns: Sequence[Turn], arm: str) -> None:
        """The recorded history, as one arm asks it; turns that it would ask as the first arm does are left out."""
        latest: Turn | None = None
        for turn in turns:
            own = arms.asked(turn, self._policy, arm)
            if own is None:
                continue
            if latest is not None:
                self._pause(turn.pause_ms)
            if self.stopped.is_set():
                return
            cold = latest is None and len(self._policy.arms) > 1 and self._policy.cache_prompt
            policy = replace(own[1], cache_prompt=False) if cold else own[1]
            self.send(own[0], policy=policy, arm=arm, cold=cold)
            latest = turn

    def _play_live(self, turns: Sequence[Turn]) -> None:
        """The server's own answers as history."""
        live = LiveHistory(turns)
        latest: PlayedTurn | None = None
        for position, turn in enumerate(turns):
            if position:
                self._pause(turn.pause_ms)
            if self.stopped.is_set():
                return
            messages, flags = live.messages(position)
            if messages is None:
                self._flag(latest, NEXT_TURN_SKIPPED)
                continue
            own = arms.asked(replace(turn, messages=messages), self._policy, self._policy.arms[0])
            assert own is not None, "the first arm asks every turn"
            latest = self.send(own[0], policy=own[1], flags=flags)
            if latest is not None:
                for flag in live.answered(position, latest.exchange):
                    self._flag(latest, flag)

    def send(
        self,
        turn: Turn,
        *,
        warmup: bool = False,
        flags: tuple[str, ...] = (),
        policy: ReplayPolicy | None = None,
        arm: str | None = None,
        cold: bool = False,
    ) -> PlayedTurn | None:
        """Send one turn and keep it; None if the replay was stopped or its time is over. `policy` None = the replay's;
        `arm` None = its first."""
        timeout_s = self._remaining_s()
        if self.stopped.is_set() or timeout_s <= 0:
            self.stopped.set()
            return None
        fields = self._request_fields(turn.bucket)
        payload = build_payload(turn, policy or self._policy, fields, self._template_kwargs)
        metrics_before = self._metrics_page()
        with self._lock:  # the order of the requests and of their places in the log must be the same
            order, self._next_order = self._next_order, self._next_order + 1
            log_start = self._log_size()
        exchange = self._client.chat(payload, turn_index=order, log_start=log_start, timeout_s=timeout_s)
        exchange = replace(exchange, arm=arm or self._policy.arms[0])
        if self._metrics_path is not None:
            exchange = replace(exchange, metrics_before=metrics_before, metrics_after=self._metrics_page())
        self._await_quiet_log()
        played = PlayedTurn(
            turn=turn,
            exchange=exchange,
            warmup=warmup,
            order=order,
            prompt_sha256=prompt_sha256(payload),
            flags=flags,
            cold=cold,
        )
        return played if self._keep(played) else None

    def _keep(self, played: PlayedTurn) -> bool:
        with self._lock:
            if played.exchange.error_type == "cancelled":
                self.stopped.set()  # by us or by whoever shares the client: not an answer of the server
                return False
            self.played.append(played)
            if played.warmup or self._on_turn is None or self.stopped.is_set():
                return True
            go_on = self._on_turn(played.turn, played.exchange)
        if not go_on:
            self.stop()
        return True

    def _flag(self, played: PlayedTurn | None, flag: str) -> None:
        with self._lock:
            for i in range(len(self.played) - 1, -1, -1):
                if played is not None and self.played[i].order == played.order:
                    self.played[i] = replace(self.played[i], flags=(*self.played[i].flags, flag))
                    return

    def _remaining_s(self) -> float:
        if self._deadline_ns is None:
            return self._policy.turn_timeout_s
        return min(self._policy.turn_timeout_s, (self._deadline_ns - time.monotonic_ns()) / 1e9)

    def _pause(self, pause_ms: float | None) -> None:
        if pause_ms is None or pause_ms <= 0 or self._policy.pauses == "drop":
            return
        longest_s = COMPRESSED_PAUSE_S if self._policy.pauses == "compress" else pause_ms / 1e3
        remaining_s = longest_s if self._deadline_ns is None else (self._deadline_ns - time.monotonic_ns()) / 1e9
        self._client.wait_cancelled(max(0.0, min(pause_ms / 1e3, longest_s, remaining_s)))

    def _metrics_page(self) -> str | None:
        if self._metrics_path is None:
            return None
        try:
            return self._client.get_text(self._metrics_path)
        except RequestError:
            return None  # the adapter sees that its counters are missing

    def _await_quiet_log(self) -> None:
        if self._policy.concurrency > 1:
            return  # other turns write on; the slices overlap anyway
        size = self._log_size()
        for _ in range(LOG_QUIET_TRIES):
            if self._client.wait_cancelled(LOG_QUIET_S):
                return
            size, before = self._log_size(), size
            if size == before:
                return
