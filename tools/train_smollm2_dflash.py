#!/usr/bin/env python3
# One file by design, to be copied to a machine with an accelerator: prompt texts are long lines, formulas use short names.
# ruff: noqa: E501, E731, E741, SIM905, SIM300, SIM115, RUF012, B905, BLE001, T201, PTH103, PTH118, PTH123, PTH202, PTH207
# mypy: ignore-errors
"""Train a DFlash draft for SmolLM2-135M-Instruct, starting from nothing but the target's GGUF file.

    pip install jax[cuda13] numpy gguf tokenizers
    python tools/train_smollm2_dflash.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out out/

Three stages, all in one process:

1. *Text.* The target writes its own training text: greedy or at temperature 0.7, from prompts built here (code tasks on the
   Python standard library's sources, agents with tools and JSON calls, questions, rewriting) and from user turns it invents itself.
2. *Training.* A small transformer learns to fill a block `[last token, mask, mask, ...]` in one pass. Its attention reads the
   block and, at every earlier position, keys and values projected from the target's hidden states (the inputs of four of its
   layers), which are recomputed for each batch. Embedding and output head are the target's own.
3. *Export* to a GGUF with `general.architecture = dflash`, for `llama-server --spec-type draft-dflash`.

Shapes: B sequences, T tokens, H hidden size, A anchors (blocks) a sequence, L tokens a block, V vocabulary.
"""

import argparse
import functools
import glob
import json
import os
import random
import sysconfig
import time

import jax
import jax.numpy as jnp
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

# The target: sizes of SmolLM2-135M (llama architecture), as its GGUF metadata states them.
H, N_LAYER, N_HEAD, N_KV, HEAD_DIM, THETA, TARGET_EPS = 576, 30, 9, 3, 64, 100000.0, 1e-5
GROUP = N_HEAD // N_KV
END_OF_TEXT, IM_END = 0, 2
# The draft. Target layers are numbered so that layer i stands for the *input* of block i.
TARGET_LAYERS, MASK_TOKEN, DRAFT_EPS = (2, 11, 20, 29), 16, 1e-6
BF16 = jnp.bfloat16

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


# ------------------------------------------------------------------------------------------------ target


def load_target(path):
    """Read the target's weights: a dict with `emb` [V, H], `out_norm` [H] and `layers`, stacked [N_LAYER, in, out] in bfloat16."""
    attention_backend()  # choose it now: inside a traced function it could not be tried
    w = {t.name: np.asarray(dequantize(t.data, t.tensor_type), np.float32) for t in GGUFReader(path).tensors}

    def stack(*names):  # fuse matrices that share their input, transpose to [in, out]
        return jnp.asarray(
            np.stack([np.concatenate([w[f"blk.{i}.{n}.weight"] for n in names]).T for i in range(N_LAYER)]), BF16
        )

    def norms(name):
        return jnp.asarray(np.stack([w[f"blk.{i}.{name}.weight"] for i in range(N_LAYER)]))

    layers = dict(
        attn_norm=norms("attn_norm"),
        ffn_norm=norms("ffn_norm"),
        qkv=stack("attn_q", "attn_k", "attn_v"),
        o=stack("attn_output"),
        gate_up=stack("ffn_gate", "ffn_up"),
        down=stack("ffn_down"),
    )
    return dict(
        emb=jnp.asarray(w["token_embd.weight"], BF16), out_norm=jnp.asarray(w["output_norm.weight"]), layers=layers
    )


def rms_norm(x, weight, eps):
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def matmul(x, w):
    """bfloat16 operands, float32 result."""
    return jnp.matmul(x.astype(BF16), w.astype(BF16), preferred_element_type=jnp.float32)


def rope_pairs(x, pos):
    """Rotary embedding over neighbouring pairs (llama.cpp's llama layout); x [..., heads, HEAD_DIM], pos broadcasts to x[..., 0, 0]."""
    angle = jnp.asarray(pos, jnp.float32)[..., None, None] * THETA ** (-jnp.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    c, s = jnp.cos(angle), jnp.sin(angle)
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)


def rope_halves(x, pos):
    """The same over halves (NeoX layout), which llama.cpp uses for a DFlash draft."""
    angle = jnp.asarray(pos, jnp.float32)[..., None, None] * THETA ** (-jnp.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    c, s = jnp.cos(angle), jnp.sin(angle)
    a, b = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1)


def split_qkv(qkv, pos):
    q, k, v = jnp.split(qkv, [N_HEAD * HEAD_DIM, (N_HEAD + N_KV) * HEAD_DIM], -1)
    heads = lambda x, n: x.reshape(*x.shape[:-1], n, HEAD_DIM)
    return (
        rope_pairs(heads(q, N_HEAD), pos).astype(BF16),
        rope_pairs(heads(k, N_KV), pos).astype(BF16),
        heads(v, N_KV).astype(BF16),
    )


def target_ffn(x, l):
    gate, up = jnp.split(matmul(rms_norm(x, l["ffn_norm"], TARGET_EPS), l["gate_up"]), 2, -1)
    return x + matmul(jax.nn.silu(gate) * up, l["down"])


@functools.cache
def attention_backend():
    """cuDNN's fused attention where it works and agrees with plain XLA; otherwise plain XLA."""
    q, k = (jax.random.normal(jax.random.PRNGKey(i), (2, 128, n, HEAD_DIM), BF16) for i, n in enumerate((N_HEAD, N_KV)))
    run = lambda how: jax.nn.dot_product_attention(q, k, k, is_causal=True, implementation=how).astype(jnp.float32)
    if jax.default_backend() == "gpu":
        try:
            if float(jnp.abs(run("cudnn") - run("xla")).max()) < 0.05:
                return "cudnn"
        except Exception as error:  # an optional fast path: whatever is missing there, the plain path remains
            print("cuDNN attention is not usable here:", str(error)[:200], flush=True)
    return "xla"


def target_features(W, tok):
    """tok [B, T] -> (the inputs of TARGET_LAYERS side by side [B, T, 4H] float32, a function that computes the last hidden states)."""
    B, T = tok.shape
    pos = jnp.arange(T)

    def block(x, l):
        q, k, v = split_qkv(matmul(rms_norm(x, l["attn_norm"], TARGET_EPS), l["qkv"]), pos)
        a = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=attention_backend())
        return target_ffn(x + matmul(a.reshape(B, T, -1), l["o"]), l), None

    def through(x, start, stop):
        return jax.lax.scan(block, x, jax.tree.map(lambda a: a[start:stop], W["layers"]))[0]

    x, taken, start = W["emb"][tok].astype(jnp.float32), [], 0
    for stop in TARGET_LAYERS:
        x, start = through(x, start, stop), stop
        taken.append(x)
    return jnp.concatenate(taken, -1), lambda: through(x, start, N_LAYER)


@jax.jit
def target_argmax(W, tok):
    """The target's greedy next token at every position, [B, T]; used to check the text generator."""
    return jnp.argmax(matmul(rms_norm(target_features(W, tok)[1](), W["out_norm"], TARGET_EPS), W["emb"].T), -1)


# ------------------------------------------------------------------------------------------------ text


def load_tokenizer(path):
    """SmolLM2's byte-level BPE, built from the GGUF's own vocabulary and merges."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    fields = GGUFReader(path).fields
    vocab = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(vocab)}, merges=merges))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in vocab[:17]])
    return t


SYSTEMS = [DEFAULT_SYSTEM] * 4 + (
    "You are a helpful assistant.|You are a helpful coding agent. Answer briefly.|You are an expert programmer.|Answer concisely.|"
    "You are an autonomous agent that works on a software project.|You are a careful reviewer of Python code.|You are a patient teacher.|"
    "You rewrite text as the user asks, and return only the result.|You are an AI assistant that always answers in JSON.|"
    "You are a technical writer.|You are a senior software engineer. Think step by step, then give the code.|You are a data analyst.|"
    "You are a creative writing assistant.|You are a math tutor. Show every step.|You help people to plan projects.|"
    "You are a system administrator who writes safe shell commands."
).split("|")
LANGS = "Python Python Python Python JavaScript TypeScript C C++ Java Go Rust SQL Bash Ruby PHP".split()
VERBS = (
    "Write a {l} function to|Show me how to|Implement in {l} a way to|Write a short {l} program to|I need {l} code to|"
    "Write a well documented {l} function to|Write a {l} class with a method to|Explain how to|Write unit tests for {l} code meant to|"
    "Give me two different {l} solutions to|Design a command line tool in {l} to"
).split("|")
ACTIONS = (
    "add|sort|reverse|count|find|remove|merge|validate|parse|print|group|filter|compare|search|convert|compress|shuffle|cache|load|save|"
    "split|join|rename|summarise|translate|encrypt|download|update|sum up|flatten"
).split("|")
OBJECTS = (
    "a list of integers|the words of a sentence|the lines of a file|two dictionaries|a CSV file|a JSON document|a linked list|"
    "a binary tree|dates in ISO format|email addresses|duplicate entries|log messages|a matrix|a stack|a queue of jobs|user records|"
    "HTTP responses|temperatures|prime numbers|file names in a folder|environment variables|a graph's nodes|strings by length|"
    "database rows|configuration values|prices in a shopping cart|URLs on a web page|the vowels of a string|a priority queue|image sizes"
).split("|")
EXTRAS = (
    "||| Use only the standard library.| Handle empty input.| Add type hints.| Explain each step.| Keep it under 20 lines.|"
    " Include an example.| Return the code only.| Raise an error on bad input."
).split("|")
TOPICS = (
    "photosynthesis|the water cycle|black holes|volcanoes|the French Revolution|the Silk Road|gravity|vaccines|honey bees|"
    "the stock market|inflation|jazz|chess|the moon landing|solar panels|electric cars|the human heart|sleep|whales|coral reefs|"
    "the Roman Empire|democracy|bread baking|green tea|running a marathon|learning a language|time management|public speaking|"
    "a job interview|remote work|machine learning|neural networks|the internet|encryption|operating systems|compilers|databases|"
    "version control|unit testing|code review|recursion|hash tables|sorting algorithms|regular expressions|web servers|caching|threads|"
    "memory leaks|API design|continuous integration|containers|debugging|climate change|recycling|deserts|rivers|earthquakes|"
    "the Renaissance|Shakespeare|haiku|painting|photography|cooking pasta|healthy breakfasts|yoga|meditation|budgeting"
).split("|")
ASKS = (
    "Explain {t} to a child.|What is {t}? Give a short answer.|List five facts about {t}.|Write a short essay about {t}.|"
    "What are the pros and cons of {t}?|Write a story about {t}.|Give me a step by step guide to {t}.|"
    "Write an email to a friend about {t}.|Compare {t} and {u}.|How does {t} work?|Write ten quiz questions on {t}, with answers.|"
    "Summarise the history of {t}.|Why does {t} matter?|Write a dialogue between two people about {t}.|"
    "What are common misconceptions about {t}?|Make a table that compares {t} with {u}.|Write a plan to learn {t} in a month."
).split("|")
ABOUT_CODE = (
    "Explain what this code does.|Add docstrings to this code.|Rewrite this code with type hints.|Find possible bugs in this code.|"
    "Refactor this code.|Write unit tests for this code.|Repeat this code exactly.|"
    "Rename the variables of this code so that they are clearer, and return the whole code.|Summarise this file in three sentences.|"
    "List the functions in this code, with one line each.|Translate this code to JavaScript.|Continue this code.|"
    "Write a commit message for this change.|Review this code.|Add error handling to this code.|"
    "Return this code with comments on every line."
).split("|")
ABOUT_TEXT = (
    "Rewrite this text in simple words:|Summarise this text:|Turn this text into a bullet list:|Correct the grammar of this text:|"
    "Make this text shorter:|Repeat this text word for word:|Write a title for this text:|Make this text more friendly:|"
    "Extract the key terms of this text as a JSON list:|Write three questions that this text answers:"
).split("|")
FILES = (
    "app.py|server.py|config.yaml|README.md|src/main.c|src/parser.py|web/index.html|tests/test_api.py|Dockerfile|Makefile|models.py|"
    "cli.py|db/schema.sql|auth.py|worker.py|lib/cache.py|router.ts|package.json|setup.cfg|docs/usage.md|scripts/build.sh|data/users.csv|"
    "src/lib.rs|go.mod|notes.txt"
).split("|")
WORDS = (
    "timeout|retry|login|token|user_id|TODO|import os|parse_args|session|price|def main|connection|cache|deprecated|ValueError|password|"
    "version|encoding|port|index"
).split("|")
CITIES = ("Paris|Tokyo|Berlin|Nairobi|Lima|Oslo|Toronto|Mumbai|Cairo|Madrid|Seoul|Boston").split("|")
PEOPLE = ("Alice|Bob|Carla|David|Emma|Farid|Grace|Hugo|Ines|Jack|Keiko|Liam").split("|")
COMMANDS = (
    "ls -la|git status|git diff|pytest -q|python app.py|make build|cat notes.txt|grep -rn TODO src|npm test|docker ps|df -h|go test ./..."
).split("|")
# Tools: name, what it does, parameters. The HELD_ lists are for the held-out sets and never trained on.
TOOLS = [
    t.split(": ")
    for t in (
        "read_file: Read a file: path|write_file: Write text to a file: path content|list_files: List a directory: path|"
        "bash: Run a shell command: command timeout|search: Search the code base: query path|"
        "edit_file: Replace text in a file: path old_text new_text|run_tests: Run the test suite: path|"
        "get_weather: Current weather of a city: city unit|web_search: Search the web: query|fetch_url: Download a web page: url|"
        "send_email: Send an email: to subject body|create_event: Add a calendar event: title date time|"
        "calculator: Evaluate an expression: expression|sql_query: Query the database: query|git_commit: Commit the staged changes: message|"
        "grep: Search with a regular expression: pattern path|get_stock_price: Price of a stock: symbol|"
        "translate: Translate a text: text language|set_timer: Start a timer: minutes|read_logs: Read the service's logs: service lines|"
        "delete_file: Delete a file: path|open_issue: Open an issue: title body labels|get_user: Look up a user: user_id|"
        "play_music: Play a song: song artist"
    ).split("|")
]
HELD_TOOLS = [
    t.split(": ")
    for t in (
        "view: View part of a file: file start_line end_line|apply_patch: Apply a unified diff: patch|"
        "find_symbol: Find where a symbol is defined: symbol|restart_service: Restart a service: name|"
        "book_flight: Book a flight: origin destination day|lint: Run the linter: target|add_note: Store a note: note|"
        "currency: Convert money: amount source target"
    ).split("|")
]
TASKS = (
    "Read {f} and tell me what it does.|Open {f}.|Fix the failing test in {f}.|Find every use of {w}.|Rename {w} to {w2} in {f}.|"
    "Run {c}.|Add a test for {f}.|Create {f} with a short example.|What does {f} import?|List the files in the project.|"
    "Search for {w} in {f}.|What is the weather in {y}?|Send an email to {p} about {t}.|Add a function to {f} to {a} {o}.|"
    "Show the last lines of the log.|Remove {w} from {f}.|Set up a meeting with {p} tomorrow.|How many lines does {f} have?|"
    "Run the tests and fix what fails.|Explain the error in {f}.|Look up {t} on the web.|Commit the change with a good message.|"
    "Write {f} so that it can {a} {o}."
).split("|")
HELD_TASKS = (
    "Show me lines 10 to 40 of {f}.|Where is {w} defined?|The linter complains about {f}; clean it up.|"
    "Restart the service after the change to {f}.|Book a flight to {y} for {p}.|Convert 250 dollars to euros.|"
    "Make a note that {f} needs {w}.|Undo the last change to {f}.|Check whether {f} still builds.|"
    "Replace the call to {w} in {f} by a safer one."
).split("|")
HELD_ACTIONS = ("rotate|deduplicate|paginate|interleave|tally").split("|")
HELD_OBJECTS = (
    "a ring buffer|the paragraphs of a letter|phone numbers|a deck of cards|bank transactions|the cells of a spreadsheet"
).split("|")
HELD_TOPICS = (
    "penguins|glaciers|the printing press|bicycles|dreams|lighthouses|package managers|load balancers|the violin|urban gardens"
).split("|")
ABOUT_DATA = (
    "Return this data as a JSON list with the same keys, sorted by the first key:|Convert this JSON to YAML:|"
    'Summarise these records in one sentence:|Add a field "checked": true to every record and return the JSON:|'
    "Return only the names as a JSON list:|Write a JSON schema for this data:|Convert this JSON to a markdown table:|"
    "Repeat this JSON exactly:|Write Python code that prints this data:"
).split("|")
AGENTS = (
    "You are a coding agent.|You are an assistant with access to tools.|You are an autonomous software engineer.|"
    "You can call functions to help the user.|You are a helpful AI assistant named SmolLM, trained by Hugging Face."
).split("|")
TOOL_HEADINGS = ["# Tools", "Available tools:", "You have these functions:", "Tools"]
CALL_RULES = [
    'For each call return JSON inside tags: <tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>',
    'Answer with one JSON object: {"tool": <name>, "args": {...}}',
    "Answer with a JSON code block that has the keys name and arguments.",
    "Use the format:\nAction: <tool>\nAction Input: <JSON>",
]
CALL_STARTS = ['<tool_call>\n{"name": "', '{"tool": "', '```json\n{\n  "name": "', "Action:"]


class Prompts:
    """Draws prompts as (text, role that writes first).

    `held` switches to word lists, tools and source files that the training text never uses.
    """

    MIX = dict(invented=30, coding=13, question=8, source=15, raw=4, rewriting=7, data=6, agent=17)
    LONG_MIX = dict(source=35, raw=10, rewriting=10, agent=45)
    HELD_MIX = dict(coding=3, question=3, source=3, rewriting=2, data=1)

    def __init__(self, seed, held=False, text_dir=None):
        self.r, self.held = random.Random(seed), held
        root = text_dir or sysconfig.get_paths()["stdlib"]
        files = sorted(glob.glob(root + "/**/*.py", recursive=True))
        files = [f for f in files if "/site-packages/" not in f and "/test" not in f]
        files = [f for i, f in enumerate(files) if (i % 13 == 0) == held and 2000 < os.path.getsize(f) < 400000]
        texts = [open(f, encoding="utf8", errors="ignore").read() for f in files]
        self.sources = [s for s in texts if s.isascii()]
        self.docs = [d.strip() for s in self.sources for d in s.split('"""')[1::2] if 250 < len(d) < 3000]
        self.tools, self.tasks = (HELD_TOOLS, HELD_TASKS) if held else (TOOLS, TASKS)
        self.topics = HELD_TOPICS if held else TOPICS
        self.actions, self.objects = (HELD_ACTIONS, HELD_OBJECTS) if held else (ACTIONS, OBJECTS)

    def draw(self, chars=(200, 2200), mix=None):
        """One prompt of a random kind; `chars` bounds how much source code, text or tool output it holds."""
        mix = mix or self.MIX
        kind = self.r.choices(list(mix), list(mix.values()))[0]
        return getattr(self, kind)(self.r.randrange(*chars))

    @staticmethod
    def chat(system, *turns):
        """ChatML with the assistant's turn left open; turns alternate user, assistant, user, ..."""
        out = f"<|im_start|>system\n{system}<|im_end|>\n"
        for i, turn in enumerate(turns):
            out += f"<|im_start|>{('user', 'assistant')[i % 2]}\n{turn}<|im_end|>\n"
        return out + "<|im_start|>assistant\n"

    def fill(self, s):
        c = self.r.choice
        words = dict(f=c(FILES), w=c(WORDS), w2=c(WORDS), c=c(COMMANDS), y=c(CITIES), p=c(PEOPLE), t=c(self.topics))
        return s.format(**words, u=c(self.topics), a=c(self.actions), o=c(self.objects), l=c(LANGS))

    def snippet(self, chars):
        """Whole lines of one source file, at most `chars` characters."""
        source = self.r.choice(self.sources)
        lines, n = [], 0
        for line in source[self.r.randrange(max(1, len(source) - chars)) :].split("\n")[1:]:
            n += len(line) + 1
            if n > chars:
                break
            lines.append(line)
        return "\n".join(lines)

    def as_json(self, x):
        return json.dumps(x, indent=self.r.choice([None, None, 2, 4]))

    # the kinds of prompt; each takes `chars`

    def invented(self, _):
        """The target writes the user's turn, too."""
        return f"<|im_start|>system\n{self.r.choice(SYSTEMS)}<|im_end|>\n<|im_start|>user\n", "user"

    def coding(self, _):
        c = self.r.choice
        question = self.fill(f"{c(VERBS)} {c(self.actions)} {c(self.objects)}.") + c(EXTRAS)
        return self.chat(c(SYSTEMS), question), "assistant"

    def question(self, _):
        return self.chat(self.r.choice(SYSTEMS), self.fill(self.r.choice(ASKS))), "assistant"

    def source(self, chars):
        code, ask = self.snippet(chars), self.r.choice(ABOUT_CODE)
        code = f"```python\n{code}\n```" if self.r.random() < 0.6 else code
        return self.chat(
            self.r.choice(SYSTEMS), f"{ask}\n\n{code}" if self.r.random() < 0.7 else f"{code}\n\n{ask}"
        ), "assistant"

    def raw(self, chars):
        return self.snippet(chars), "assistant"

    def rewriting(self, chars):
        text = "\n\n".join(self.r.sample(self.docs, 1 + (chars > 2500)))[:chars]
        return self.chat(self.r.choice(SYSTEMS), f"{self.r.choice(ABOUT_TEXT)}\n{text}"), "assistant"

    def record(self):
        r = self.r
        whole = dict(id=r.randrange(1000), name=r.choice(PEOPLE), city=r.choice(CITIES), active=r.random() < 0.5)
        whole |= dict(file=r.choice(FILES), score=round(r.random() * 100, 1), tags=r.sample(WORDS, r.randrange(1, 4)))
        return {k: v for k, v in (whole | dict(price=r.randrange(5, 900))).items() if r.random() < 0.7}

    def data(self, _):
        rows = [self.record() for _ in range(self.r.randrange(1, 7))]
        body = self.as_json(rows if len(rows) > 1 else rows[0])
        return self.chat(self.r.choice(SYSTEMS), f"{self.r.choice(ABOUT_DATA)}\n{body}"), "assistant"

    def argument(self, name):
        c = self.r.choice
        if name in ("path", "file", "target"):
            return c(FILES)
        if name in ("timeout", "lines", "minutes", "amount", "start_line", "end_line", "user_id"):
            return self.r.randrange(1, 200)
        known = dict(command=COMMANDS, city=CITIES, to=PEOPLE, pattern=WORDS, query=WORDS, symbol=WORDS)
        return c(known[name]) if name in known else self.fill(c(self.tasks))

    def call(self, tool, form):
        """A tool call as the assistant would write it, in one of four forms (CALL_RULES tells the model which)."""
        name, _, parameters = tool
        args = {p: self.argument(p) for p in parameters.split()}
        if form == 0:
            return f"<tool_call>\n{json.dumps(dict(name=name, arguments=args))}\n</tool_call>"
        if form == 1:
            return json.dumps(dict(tool=name, args=args))
        if form == 2:
            return f"```json\n{json.dumps(dict(name=name, arguments=args), indent=2)}\n```"
        return f"Action: {name}\nAction Input: {json.dumps(args)}"

    def result(self, chars):
        c = self.r.choice
        options = [
            self.snippet(self.r.randrange(100, max(200, min(1200, chars)))),
            self.as_json(self.record()),
            "\n".join(self.r.sample(FILES, self.r.randrange(2, 9))),
            "OK",
            "Error: " + self.fill("no such file: {f}"),
            self.fill("{f}:12: {w}\n{f}:48: {w2}"),
            "1 failed, 12 passed in 0.42s",
        ]
        return c(["", "Tool result:\n", "Observation: ", "<tool_response>\n"]) + c(options)

    def agent(self, chars):
        """A system prompt with tools, a task, and sometimes earlier calls with their results."""
        r, form, many = self.r, self.r.randrange(4), chars > 1500
        tools = r.sample(self.tools, r.randrange(1, 6 if self.held else 14 if many else 9))
        schema = []
        for name, does, parameters in tools:
            properties = {p: dict(type="string") for p in parameters.split()}
            schema.append(
                dict(
                    name=name,
                    description=does,
                    parameters=dict(type="object", properties=properties, required=list(properties)[:1]),
                )
            )
        listing = r.choice(
            [
                "\n".join(json.dumps(dict(type="function", function=s)) for s in schema),
                json.dumps(schema, indent=2),
                "\n".join(f"- {n}({', '.join(ps.split())}): {d}" for n, d, ps in tools),
                json.dumps(schema),
            ]
        )
        system = f"{r.choice(AGENTS)}\n\n{r.choice(TOOL_HEADINGS)}\n{listing}\n\n{CALL_RULES[form]}"
        turns, used = [self.fill(r.choice(self.tasks))], 0
        while used < chars and r.random() < (0.85 if many else 0.45):
            turns += [self.call(r.choice(tools), form), self.result(chars)]
            used += len(turns[-1])
        # a third of the answers are started here, so that a small model does call a tool
        start = r.choice(["", "", CALL_STARTS[form]])
        return self.chat(system, *turns) + start, "assistant"


# After the assistant's end-of-turn token a user turn is opened, and the reverse; these tokens are given, not generated.
TURN_OPENERS = {"user": "\n<|im_start|>user\n", "assistant": "\n<|im_start|>assistant\n"}


def make_generator(openers):
    """Build the jitted text generator. `openers`: token ids that open a user turn (row 0) and an assistant turn (row 1)."""
    width = max(map(len, openers))
    table = jnp.asarray([list(o) + [0] * (width - len(o)) for o in openers])
    sizes = jnp.asarray([len(o) for o in openers])

    def step(W, state, t):
        """One token for all B sequences: read column t, write column t + 1."""
        tok, own, plen, role, temp, cap, left, length, key, caches = state
        B, T = tok.shape
        x = W["emb"][tok[:, t]].astype(jnp.float32)
        seen, new = jnp.arange(T) <= t, []
        for i in range(N_LAYER):
            l = jax.tree.map(lambda a, i=i: a[i], W["layers"])
            q, k, v = split_qkv(matmul(rms_norm(x, l["attn_norm"], TARGET_EPS), l["qkv"]), t)
            K, V = (jax.lax.dynamic_update_slice(c, y[:, :, None], (0, 0, t, 0)) for c, y in zip(caches[i], (k, v)))
            new.append((K, V))
            s = (
                jnp.einsum(
                    "bkgd,bktd->bkgt", q.reshape(B, N_KV, GROUP, HEAD_DIM), K, preferred_element_type=jnp.float32
                )
                / HEAD_DIM**0.5
            )
            p = jax.nn.softmax(jnp.where(seen, s, -1e30), -1).astype(BF16)
            a = jnp.einsum("bkgt,bktd->bkgd", p, V, preferred_element_type=jnp.float32)
            x = target_ffn(x + matmul(a.reshape(B, -1), l["o"]), l)
        logits = matmul(rms_norm(x, W["out_norm"], TARGET_EPS), W["emb"].T)
        # greedy at temperature 0; else sampling among tokens of at least 5 % of the likeliest one's probability
        key, sub = jax.random.split(key)
        heat = jnp.where(role == 1, temp, 1.0)[:, None]
        kept = jnp.where(logits >= logits.max(-1, keepdims=True) + np.log(0.05), logits, -jnp.inf)
        drawn = jnp.argmax(kept + heat * jax.random.gumbel(sub, logits.shape), -1)
        given, opening = t + 1 < plen, left > 0
        cut = (length >= jnp.where(role == 1, cap, 120)) & ~given & ~opening
        free = ~given & ~opening & ~cut
        token = jnp.where(
            given, tok[:, t + 1], jnp.where(opening, table[role, sizes[role] - left], jnp.where(cut, IM_END, drawn))
        )
        ended = (free | cut) & ((token == IM_END) | (token == END_OF_TEXT))
        tok, own = tok.at[:, t + 1].set(token), own.at[:, t + 1].set(free & (role == 1))
        role = jnp.where(ended, 1 - role, role)
        left = jnp.where(ended, sizes[role], jnp.where(opening, left - 1, left))
        length = jnp.where(ended, 0, jnp.where(free, length + 1, length))
        return tok, own, plen, role, temp, cap, left, length, key, new

    @jax.jit
    def run(W, tok, plen, role, temp, cap, seed):
        """Fill tok [B, T] after each row's first `plen` tokens -> (tok, own: what the target wrote as the assistant)."""
        B, T = tok.shape
        caches = [tuple(jnp.zeros((B, N_KV, T, HEAD_DIM), BF16) for _ in "kv") for _ in range(N_LAYER)]
        zero = jnp.zeros(B, jnp.int32)
        state = (
            tok,
            jnp.zeros((B, T), bool),
            plen,
            role,
            temp,
            cap,
            zero,
            zero,
            jax.random.key(seed, impl="rbg"),
            caches,
        )
        return jax.lax.fori_loop(0, T - 1, lambda t, s: step(W, s, t), state)[:2]

    return run


def encode_prompts(tokenizer, drawn, T):
    """[(text, role)] -> (tok [N, T] padded with zeros, plen [N], role [N]); texts that leave no room for an answer lose their middle."""
    tok, plen, role = (
        np.zeros((len(drawn), T), np.int32),
        np.zeros(len(drawn), np.int32),
        np.zeros(len(drawn), np.int32),
    )
    limit = T * 13 // 16
    for i, (enc, (_, r)) in enumerate(zip(tokenizer.encode_batch([d[0] for d in drawn]), drawn)):
        ids = enc.ids if len(enc.ids) <= limit else enc.ids[: limit // 2] + enc.ids[len(enc.ids) - limit // 2 :]
        tok[i, : len(ids)], plen[i], role[i] = ids, len(ids), r == "assistant"
    return tok, plen, role


def repeats(tok, n=12):
    """[N, T] -> where the last n tokens occurred before in the same row: the target is looping there and drafting is trivial."""
    h = np.zeros(tok.shape, np.uint64)
    for i in range(n):
        h = h * np.uint64(1000003) + np.roll(tok, n - 1 - i, 1).astype(np.uint64)
    out = np.ones(tok.shape, bool)
    for i, row in enumerate(h):
        out[i, np.unique(row, return_index=True)[1]] = False
    out[:, :n] = False
    return out


def generate(W, gguf, seconds, shapes, log, seed=0, text_dir=None):
    """Write text until `seconds` have passed. shapes: [(B, T, runs in a cycle)]. -> {T: (tok, own)}, and the held-out sets."""
    tokenizer = load_tokenizer(gguf)
    run = make_generator([tokenizer.encode(TURN_OPENERS[r]).ids for r in ("user", "assistant")])
    (B, T, _), r = shapes[0], np.random.default_rng(seed)
    start = time.time()

    # held-out: half general, half agents; greedy, first answer only
    held, ev = Prompts(seed + 1, held=True, text_dir=text_dir), {}
    general = [held.draw((200, 1500), Prompts.HELD_MIX) for _ in range(B // 2)]
    agents = [held.agent(600) for _ in range(B - B // 2)]
    tok, plen, role = encode_prompts(tokenizer, general + agents, T)
    tok, own = (
        np.array(a) for a in run(W, tok, plen, role, np.zeros(B, np.float32), np.full(B, 256, np.int32), seed + 1)
    )
    after = (np.arange(T) > plen[:, None]) & ((tok == IM_END) | (np.arange(T) >= plen[:, None] + 256))
    own &= np.cumsum(np.roll(after, 1, 1) * (np.arange(T) > plen[:, None] + 1), 1) == 0
    for name, rows in dict(general=slice(0, B // 2), agent=slice(B // 2, B)).items():
        ev[name] = (tok[rows].astype(np.uint16), own[rows], plen[rows])
    # generator against a plain forward pass: they must agree wherever the target chose freely
    greedy = np.asarray(target_argmax(W, tok[:8]))
    agree = (greedy[:, :-1] == tok[:8, 1:])[own[:8, 1:]].mean()
    log(
        f"held-out text after {time.time() - start:.0f} s; a plain forward pass agrees with {agree:.4f} of its greedy tokens"
    )

    train, out, n, cycle = (
        Prompts(seed, text_dir=text_dir),
        {s[1]: [] for s in shapes},
        0,
        [s for s in shapes for _ in range(s[2])],
    )
    while n < 1 or time.time() - start < seconds:
        B, T, _ = cycle[n % len(cycle)]
        drawn = [train.draw() if T == shapes[0][1] else train.draw((1500, 5500), train.LONG_MIX) for _ in range(B)]
        tok, plen, role = encode_prompts(tokenizer, drawn, T)
        temp = np.where(r.random(B) < 0.7, 0.0, 0.7).astype(np.float32)
        t0 = time.time()
        tok, own = run(W, tok, plen, role, temp, r.integers(160, 400, B).astype(np.int32), seed + 100 + n)
        out[T].append((np.asarray(tok).astype(np.uint16), np.asarray(own)))
        n += 1
        speed = B * (T - 1) / (time.time() - t0)
        log(
            f"text {n}: {B} x {T}, {out[T][-1][1].mean():.2f} of it answers, {speed:.0f} tok/s, {time.time() - start:.0f} s"
        )
    sets = {T: tuple(np.concatenate(a) for a in zip(*v)) for T, v in out.items() if v}
    log(
        "tokens: "
        + ", ".join(f"{v[0].size / 1e6:.2f} M ({v[1].sum() / 1e6:.2f} M answers) at T={T}" for T, v in sets.items())
    )
    return sets, ev


# ------------------------------------------------------------------------------------------------ draft


def init_draft(key, n_layer, ff, out_norm, feature_scale):
    """Parameters; matrices [n_layer, in, out]. `feature_scale` [4H] brings every feature channel to unit size; export folds it into fc."""
    keys = iter(jax.random.split(key, 16))
    mat = lambda i, o, s=1.0: jax.random.normal(next(keys), (n_layer, i, o)) * (s / i**0.5)
    one = lambda n: jnp.ones((n_layer, n))
    return dict(
        fc=mat(len(TARGET_LAYERS) * H, H)[0],
        enc_norm=jnp.ones(H),
        out_norm=out_norm,
        feature_scale=feature_scale,
        layers=dict(
            attn_norm=one(H),
            q=mat(H, N_HEAD * HEAD_DIM),
            k=mat(H, N_KV * HEAD_DIM),
            v=mat(H, N_KV * HEAD_DIM),
            o=mat(N_HEAD * HEAD_DIM, H, 0.3),
            q_norm=one(HEAD_DIM),
            k_norm=one(HEAD_DIM),
            ffn_norm=one(H),
            gate=mat(H, ff),
            up=mat(H, ff),
            down=mat(ff, H, 0.3),
        ),
    )


def draft_hidden(p, emb, features, x, anchor, block_len):
    """features [B, T, 4H]; blocks x [B, A, L] starting at positions anchor [B, A], of block_len [B, A] tokens -> final hidden [B, A, L, H].

    A block attends to the target's features at positions before its anchor, and to all of itself, as llama.cpp does.
    """
    (B, T, _), (_, A, L) = features.shape, x.shape
    norm = lambda y, w: rms_norm(y, w, DRAFT_EPS)
    g = norm(matmul(features * jax.lax.stop_gradient(p["feature_scale"]), p["fc"]), p["enc_norm"]).astype(BF16)
    at = anchor[..., None] + jnp.arange(L)
    ctx_mask = (jnp.arange(T) < anchor[..., None])[:, None, :, None]  # B 1 A 1 T
    block_mask = (jnp.arange(L) < block_len[..., None])[:, None, :, None]  # B 1 A 1 L
    rows = lambda y, n: (
        y.reshape(B, A * L, N_KV, n, HEAD_DIM).transpose(0, 2, 1, 3, 4).reshape(B, N_KV, A, L * n, HEAD_DIM)
    )
    h = emb[x].astype(jnp.float32)
    for i in range(p["layers"]["q"].shape[0]):
        l = jax.tree.map(lambda a, i=i: a[i], p["layers"])

        def heads(y, name, n, l=l):  # [..., H] -> [..., n, HEAD_DIM]
            y = matmul(y, l[name])
            return y.reshape(*y.shape[:-1], n, HEAD_DIM)

        K = (
            rope_halves(norm(heads(g, "k", N_KV), l["k_norm"]), jnp.arange(T)).astype(BF16).transpose(0, 2, 1, 3)
        )  # B N_KV T HEAD_DIM
        V = heads(g, "v", N_KV).astype(BF16).transpose(0, 2, 1, 3)
        y = norm(h, l["attn_norm"]).astype(BF16)
        q = rows(
            rope_halves(norm(heads(y, "q", N_HEAD), l["q_norm"]), at).astype(BF16), GROUP
        )  # B N_KV A L*GROUP HEAD_DIM
        k = rows(rope_halves(norm(heads(y, "k", N_KV), l["k_norm"]), at).astype(BF16), 1)  # B N_KV A L HEAD_DIM
        v = rows(heads(y, "v", N_KV).astype(BF16), 1)
        flat = lambda y: y.reshape(B, N_KV, A * L * GROUP, y.shape[-1])
        deep = lambda y: y.reshape(B, N_KV, A, L * GROUP, y.shape[-1])
        # softmax over the context (s) and the block (sb) together
        s = deep(jnp.einsum("bknd,bktd->bknt", flat(q), K, preferred_element_type=jnp.float32))
        s = jnp.where(ctx_mask, s / HEAD_DIM**0.5, -1e30)
        sb = jnp.where(
            block_mask,
            jnp.einsum("bkaqd,bkasd->bkaqs", q, k, preferred_element_type=jnp.float32) / HEAD_DIM**0.5,
            -1e30,
        )
        top = jax.lax.stop_gradient(jnp.maximum(s.max(-1), sb.max(-1)))[..., None]
        e, eb = jnp.exp(s - top), jnp.exp(sb - top)
        total = e.sum(-1) + eb.sum(-1)
        o = deep(jnp.einsum("bknt,bktd->bknd", flat(e.astype(BF16)), V, preferred_element_type=jnp.float32))
        o = (o + jnp.einsum("bkaqs,bkasd->bkaqd", eb.astype(BF16), v, preferred_element_type=jnp.float32)) / total[
            ..., None
        ]
        o = o.reshape(B, N_KV, A, L, GROUP, HEAD_DIM).transpose(0, 2, 3, 1, 4, 5).reshape(B, A, L, H)
        h = h + matmul(o, l["o"])
        y = norm(h, l["ffn_norm"])
        h = h + matmul(jax.nn.silu(matmul(y, l["gate"])) * matmul(y, l["up"]), l["down"])
    return norm(h, p["out_norm"])


def blocks(tok, own, anchor, L):
    """Cut blocks at anchor [B, A] -> (x [B, A, L], labels and valid [B, A, L-1]); labels count until the answer ends."""
    pos = anchor[..., None] + jnp.arange(1, L)
    inside = jnp.minimum(pos, tok.shape[1] - 1)
    take = lambda a: jnp.take_along_axis(a[:, None], inside, 2)
    x = jnp.full((*anchor.shape, L), MASK_TOKEN).at[..., 0].set(jnp.take_along_axis(tok, anchor, 1))
    return x, take(tok), jnp.cumprod((take(own) & (pos < tok.shape[1])).astype(jnp.int32), -1).astype(bool)


def make_loss(L, n_anchor, gamma):
    def loss(p, W, tok, own, weight, key):
        """Cross-entropy of the target's own next tokens, weighted exp(-(i-1)/gamma) at block position i."""
        B, T = tok.shape
        k1, k2, k3 = jax.random.split(key, 3)
        starts = jnp.where(own[:, 1:], jnp.log(weight[:, 1:]) + jax.random.gumbel(k1, (B, T - 1)), -1e9)
        anchor = jax.lax.top_k(starts, n_anchor)[1]
        x, label, valid = blocks(tok, own, anchor, L)
        # llama.cpp fills as many masks as it is asked to draft, so shorter blocks must work as well
        block_len = jnp.where(
            jax.random.uniform(k2, anchor.shape) < 0.6, L, jax.random.randint(k3, anchor.shape, 3, L + 1)
        )
        features = jax.lax.stop_gradient(target_features(W, tok)[0])
        h = draft_hidden(p, W["emb"], features, x, anchor, block_len)[:, :, 1:]
        logits = matmul(h, W["emb"].T)
        own_logit = (h.astype(BF16).astype(jnp.float32) * W["emb"][label].astype(jnp.float32)).sum(-1)
        nll = jax.nn.logsumexp(logits, -1) - own_logit
        w = valid * (jnp.arange(1, L) < block_len[..., None]) * jnp.exp(-jnp.arange(L - 1) / gamma)
        return (nll * w).sum() / w.sum()

    return loss


def orthogonal(g):
    """Muon's update direction: the nearest (semi-)orthogonal matrix to g [..., in, out], by a quintic Newton-Schulz iteration."""
    x = g.astype(BF16)
    flip = x.shape[-2] > x.shape[-1]
    x = x.swapaxes(-1, -2) if flip else x
    x = x / (jnp.linalg.norm(x.astype(jnp.float32), axis=(-2, -1), keepdims=True) + 1e-7).astype(BF16)
    for _ in range(5):
        a = x @ x.swapaxes(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    x = x.swapaxes(-1, -2) if flip else x
    return x.astype(jnp.float32) * 0.2 * max(g.shape[-2:]) ** 0.5


def make_step(loss, muon, decay=0.05):
    """One optimiser step: AdamW, or Muon for the matrices with Adam for the norms."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, W, lr, seed, data, batch):
        p, m, v, t = state
        key = jax.random.PRNGKey(seed)
        pick = jax.random.choice(key, data[0].shape[0], (batch.shape[0],), replace=False)
        tok, own, weight = (a[pick] for a in data)
        value, g = jax.value_and_grad(loss)(p, W, tok.astype(jnp.int32), own, weight, jax.random.fold_in(key, 1))
        scale = jnp.minimum(1.0, 1.0 / jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(g))))
        g = jax.tree.map(lambda x: x * scale, g)
        t = t + 1
        m = jax.tree.map(lambda a, b: 0.95 * a + 0.05 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.98 * a + 0.02 * b * b, v, g)

        def update(path, w, g, a, b):
            name, matrix = path[-1].key, path[-1].key in MATRICES
            if name == "feature_scale":
                return w
            if matrix and muon:
                return w - lr * (orthogonal(0.05 * g + 0.95 * a) + decay * w)
            return w - lr * (a / (1 - 0.95**t) / (jnp.sqrt(b / (1 - 0.98**t)) + 1e-8) + (decay * w if matrix else 0))

        p = jax.tree_util.tree_map_with_path(update, p, g, m, v)
        return (p, m, v, t), value

    return step


MATRICES = {"fc", "q", "k", "v", "o", "gate", "up", "down"}


@jax.jit
def features_only(W, tok):
    return target_features(W, tok)[0]


@functools.partial(jax.jit, static_argnums=(7, 8))
def accepted(p, W, features, tok, own, first, n_draft, n_anchor, L):
    """Draft n_draft tokens at each of the n_anchor positions from `first` [B] on.

    -> how many drafted tokens in a row are right, and how many tokens the answer still has (at most L - 1); both [B, n_anchor].
    """
    anchor = jnp.minimum(first[:, None] + jnp.arange(n_anchor), tok.shape[1] - 1)
    x, label, valid = blocks(tok, own, anchor, L)
    h = draft_hidden(p, W["emb"], features, x, anchor, jnp.full(anchor.shape, n_draft + 1))[:, :, 1:]
    right = (jnp.argmax(matmul(h, W["emb"].T), -1) == label) & valid & (jnp.arange(L - 1) < n_draft)
    return jnp.cumprod(right.astype(jnp.int32), -1).sum(-1), valid.sum(-1)


def evaluate(p, W, held, L, rows=128, batch=16, n_drafts=None):
    """Replay greedy speculative decoding on a held-out set (first answers, at most 256 tokens each), drafting n_draft tokens a pass.

    -> dict: `length` {n_draft: tokens committed a target pass, the target's own token included}; for the longest draft also `rate`, the
    chance that its first i tokens are all right in the passes that decoding really makes, and `anywhere`, the same over all positions.
    """
    n_drafts, found = list(n_drafts or (3, L - 1)), {}
    for i in range(0, min(rows, len(held[0])), batch):
        tok, own, plen = (a[i : i + batch] for a in held)
        tok = tok.astype(np.int32)
        features = features_only(W, tok)
        for n in n_drafts:
            found.setdefault(n, []).append([np.asarray(y) for y in accepted(p, W, features, tok, own, plen, n, 256, L)])
    length = {}
    for n in n_drafts:
        right, left = (np.concatenate(a) for a in zip(*found[n]))
        passes, tokens, hits = 0, 0, np.zeros(L)
        for r, q in zip(right, left):
            a = 0
            while a < len(r) and q[a] > 0:
                hits[1 : r[a] + 1] += 1
                # the answer ends inside this block, or goes on behind it
                passes, tokens, a = (
                    passes + 1,
                    tokens + (min(r[a] + 1, q[a]) if q[a] < L - 1 else r[a] + 1),
                    a + r[a] + 1,
                )
        length[n] = round(tokens / max(1, passes), 3)
    share = lambda a, b: round(float(a / max(1, b)), 4)
    return dict(
        length=length,
        rate=[share(x, passes) for x in hits[1:]],
        anywhere=[share((right >= i).sum(), (left >= i).sum()) for i in range(1, L)],
    )


def feature_scale(W, tok):
    f = target_features(W, tok)[0][
        :, 1:
    ]  # the first position's hidden states are enormous and say nothing about the rest
    return 1.0 / jnp.sqrt(jnp.mean(f * f, (0, 1)) + 1e-6)


def train(W, sets, ev, args, log, seconds):
    """Train for `seconds` (compilation not counted) and return the parameters. Learning rate: short warm-up, then cosine to zero."""
    data = {
        T: tuple(jnp.asarray(a) for a in (tok, own, np.where(repeats(tok), 0.25, 1.0).astype(np.float32)))
        for T, (tok, own) in sets.items()
    }
    kept = {T: np.flatnonzero(sets[T][1].sum(1) > args.anchors // 2) for T in data}
    data = {T: tuple(a[kept[T]] for a in d) for T, d in data.items()}
    first = min(data)
    p = init_draft(
        jax.random.PRNGKey(0),
        args.layers,
        args.ff,
        W["out_norm"],
        jax.jit(feature_scale)(W, data[first][0][:16].astype(jnp.int32)),
    )
    p = jax.tree.map(jnp.copy, p)  # the optimiser step reuses its arguments' memory
    size = sum(x.size for x in jax.tree.leaves(p)) / 1e6
    log(
        f"{size:.2f} M parameters, sequences {[(T, len(d[0])) for T, d in data.items()]}, attention {attention_backend()}"
    )
    step = make_step(make_loss(args.block, args.anchors, args.gamma), args.opt == "muon")
    state = (p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p), jnp.zeros((), jnp.int32))
    width = {T: np.zeros(max(1, args.batch * first // T)) for T in data}
    for T in data:  # compile (learning rate zero)
        t0 = time.time()
        state, value = step(state, W, 0.0, 0, data[T], width[T])
        log(f"T={T}: first step {time.time() - t0 + 0 * float(value):.1f} s, loss {float(value):.3f}")
    state = (state[0], *(jax.tree.map(jnp.zeros_like, x) for x in state[1:3]), jnp.zeros((), jnp.int32))
    order = [T for T in data for _ in range(4 if T == first else 1)]
    t0, n, losses, told, tried = time.time(), 0, [], 0.0, 0
    while True:
        done = (time.time() - t0) / seconds
        if done >= 1 or n >= args.max_steps:
            break
        lr = args.lr * min(1.0, (n + 1) / args.warmup) * (0.5 + 0.5 * np.cos(np.pi * done))
        state, value = step(state, W, float(lr), n + 1, data[order[n % len(order)]], width[order[n % len(order)]])
        losses.append(value)
        n += 1
        if n % 10 == 0:
            float(losses[-10])  # stay at most ten steps ahead of the device
        if time.time() - t0 - told > 15:
            told = time.time() - t0
            log(f"step {n}, {told:.0f} s, loss {np.mean([float(x) for x in losses[-100:]]):.3f}, lr {lr:.2e}")
        if ev and done > (tried + 1) * 0.25:
            tried += 1
            log(f"step {n}: " + json.dumps({k: evaluate(state[0], W, e, args.block, 64) for k, e in ev.items()}))
    log(f"{n} steps in {time.time() - t0:.0f} s, last loss {np.mean([float(x) for x in losses[-50:]]):.3f}")
    return state[0], n


# ------------------------------------------------------------------------------------------------ export


def draft_tensors(p):
    """GGUF names and [out, in] arrays."""
    l = {k: np.asarray(v, np.float32) for k, v in p["layers"].items()}
    out = {
        "fc.weight": (np.asarray(p["feature_scale"])[:, None] * np.asarray(p["fc"], np.float32)).T,
        "enc.output_norm.weight": np.asarray(p["enc_norm"], np.float32),
        "output_norm.weight": np.asarray(p["out_norm"], np.float32),
    }
    names = dict(
        attn_norm="attn_norm",
        q="attn_q",
        k="attn_k",
        v="attn_v",
        o="attn_output",
        q_norm="attn_q_norm",
        k_norm="attn_k_norm",
        ffn_norm="ffn_norm",
        gate="ffn_gate",
        up="ffn_up",
        down="ffn_down",
    )
    for key, name in names.items():
        for i, a in enumerate(l[key]):
            out[f"blk.{i}.{name}.weight"] = a.T if a.ndim == 2 else a
    return out


def export(tensors, gguf, path, block, kind="q8_0", name="SmolLM2-135M-Instruct DFlash draft"):
    """Write the draft. fc stays in float16: the target's hidden states have outlier channels that 8-bit activations would blur."""
    src, w = GGUFReader(gguf), GGUFWriter(path, "dflash")
    n_layer = 1 + max(int(n.split(".")[1]) for n in tensors if n.startswith("blk."))
    w.add_name(name)
    w.add_license("apache-2.0")
    w.add_file_type({"q8_0": 7, "f16": 1}[kind])
    for key, value in dict(
        block_count=n_layer,
        context_length=8192,
        embedding_length=H,
        feed_forward_length=tensors["blk.0.ffn_up.weight"].shape[0],
        block_size=block,
    ).items():
        w.add_uint32(f"dflash.{key}", value)
    for key, value in dict(head_count=N_HEAD, head_count_kv=N_KV, key_length=HEAD_DIM, value_length=HEAD_DIM).items():
        w.add_uint32(f"dflash.attention.{key}", value)
    w.add_float32("dflash.attention.layer_norm_rms_epsilon", DRAFT_EPS)
    w.add_float32("dflash.rope.freq_base", THETA)
    w.add_array("dflash.target_layers", list(TARGET_LAYERS))
    for key, field in src.fields.items():  # the target's own tokenizer
        if key.startswith("tokenizer.") and key != "tokenizer.ggml.mask_token_id":
            kind_of = field.types[0]
            w.add_key_value(
                key,
                field.contents(),
                kind_of,
                **({"sub_type": field.types[-1]} if kind_of == GGUFValueType.ARRAY else {}),
            )
    w.add_uint32("tokenizer.ggml.mask_token_id", MASK_TOKEN)
    for tensor, a in tensors.items():
        a = np.ascontiguousarray(a)
        if a.ndim == 1:
            w.add_tensor(tensor, a.astype(np.float32))
        elif kind == "f16" or tensor == "fc.weight":
            w.add_tensor(tensor, a.astype(np.float16))
        else:
            w.add_tensor(
                tensor, quantize(a.astype(np.float32), GGMLQuantizationType.Q8_0), raw_dtype=GGMLQuantizationType.Q8_0
            )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def arguments(argv=None):
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--gguf", required=True, help="the target's GGUF file")
    a.add_argument("--out", default="out", help="folder for the draft, the text and the log")
    a.add_argument("--text", help="reuse a text.npz of an earlier run")
    a.add_argument("--text-dir", help="folder of Python sources for prompts (default: the standard library)")
    a.add_argument("--text-seconds", type=float, default=220)
    a.add_argument("--train-seconds", type=float, default=640)
    a.add_argument("--max-steps", type=int, default=10**9)
    a.add_argument(
        "--shapes",
        default="1024x1024x4,512x2048x1",
        help="text batches: sequences x tokens x runs in a cycle, comma separated",
    )
    a.add_argument("--layers", type=int, default=4)
    a.add_argument("--ff", type=int, default=1024)
    a.add_argument("--block", type=int, default=8)
    a.add_argument("--batch", type=int, default=32, help="sequences a step at the first shape's length")
    a.add_argument("--anchors", type=int, default=128, help="blocks a sequence and step")
    a.add_argument("--gamma", type=float, default=4.0, help="decay of the loss weight over block positions")
    a.add_argument("--opt", choices=["adamw", "muon"], default="muon")
    a.add_argument("--lr", type=float, default=6e-3)
    a.add_argument("--warmup", type=int, default=200)
    return a.parse_args(argv)


def make_log(folder):
    os.makedirs(folder, exist_ok=True)
    t0, f = time.time(), open(os.path.join(folder, "train.log"), "a")

    def log(line):
        line = f"{time.time() - t0:7.1f} {line}"
        print(line, flush=True)
        print(line, file=f, flush=True)

    return log


def save_text(path, sets, ev):
    np.savez(
        path,
        **{f"train_{T}_{i}": a for T, v in sets.items() for i, a in enumerate(v)},
        **{f"eval_{k}_{i}": a for k, v in ev.items() for i, a in enumerate(v)},
    )


def load_text(path):
    z, sets, ev = np.load(path), {}, {}
    for key in z.files:
        kind, name, _ = key.split("_")
        group = sets.setdefault(int(name), []) if kind == "train" else ev.setdefault(name, [])
        group.append(z[key])
    return {k: tuple(v) for k, v in sets.items()}, {k: tuple(v) for k, v in ev.items()}


def main():
    args = arguments()
    log = make_log(args.out)
    log(f"{jax.devices()[0]}, {vars(args)}")
    W = load_target(args.gguf)
    if args.text:
        sets, ev = load_text(args.text)
    else:
        sets, ev = generate(
            W,
            args.gguf,
            args.text_seconds,
            [tuple(map(int, s.split("x"))) for s in args.shapes.split(",")],
            log,
            text_dir=args.text_dir,
        )
        save_text(os.path.join(args.out, "text.npz"), sets, ev)
    p, _ = train(W, sets, ev, args, log, args.train_seconds)
    for name, held in ev.items():
        log(f"held-out {name}: {json.dumps(evaluate(p, W, held, args.block, 256, n_drafts=range(1, args.block)))}")
    tensors = draft_tensors(p)
    for kind in ("q8_0", "f16"):
        path = os.path.join(args.out, f"smollm2-135m-dflash-{kind}.gguf")
        export(tensors, args.gguf, path, args.block, kind)
        log(f"{path}: {os.path.getsize(path) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
