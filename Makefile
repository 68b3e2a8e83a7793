# `make study` and `make test` are all a newcomer needs; both set up .venv on the first call and never again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := .ci/requirements.lock
READY := $(VENV)/.ready

# Without cached bytecode every server and every run would compile its libraries again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help study study-cpu study-dflash-cpu dashboard test test-long setup check lock lock-check clean

help:
	@echo "make study            a finished emulated study in minutes: trials, findings, pictures"
	@echo "make study-cpu        real measurements with llama.cpp on this CPU"
	@echo "make study-dflash-cpu real DFlash with a small model on this CPU"
	@echo "make dashboard        the stored studies in a browser: Optuna's dashboard on this machine (Ctrl-C ends it)"
	@echo "make test             the tests"
	@echo "make test-long        whole studies, documented commands, terminals, the dashboard in a browser"
	@echo "make setup            only sets up .venv"
	@echo "make check            lint, types and lock"

# Exact versions and hashes from one lock; with uv when it is there, else with venv and pip. The lock is complete, so
# nothing is resolved (--no-deps). `venv --without-pip` also works where Debian's python3-venv is not installed.
$(READY): $(LOCK) pyproject.toml
	@set -e; \
	if command -v uv >/dev/null 2>&1; then \
	  test -x $(BIN)/python || uv venv --quiet --python $(PYTHON) $(VENV); \
	  uv pip install --quiet --compile-bytecode --python $(BIN)/python --no-deps --require-hashes -r $(LOCK); \
	  uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else \
	  test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV); \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet --no-deps --require-hashes -r $(LOCK); \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet --no-deps --no-build-isolation -e .; \
	fi
	@touch $(READY)

setup: $(READY)

study: $(READY)
	$(BIN)/python sweep.py +study=ddtree

study-cpu: $(READY)
	$(BIN)/python sweep.py +study=llamacpp_cpu

# The target as it ships, re-encoded as F16 and F32, and the agent's turns; then one page that compares them.
study-dflash-cpu: $(READY)
	@set -e; pages=; \
	for study in dflash_cpu dflash_cpu_f16 dflash_cpu_f32 dflash_cpu_agent; do \
	  page=$$($(BIN)/python sweep.py +study=$$study); echo "$$page"; pages="$$pages $$page"; \
	done; \
	$(BIN)/python -m dflash_sweep.report.does_it_pay $$pages --out reports/does_it_pay

# STUDY=name opens at one study, PORT=0 takes any free port. Ended by Ctrl-C, which is no failure.
dashboard: $(READY)
	@$(BIN)/dflash-sweep dashboard $(STUDY) $(if $(PORT),--port $(PORT)) || test $$? -eq 130

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Whole studies, every command of the documentation, terminals and the dashboard in a browser: some minutes more.
test-long: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m long

check: $(READY) lock-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

LOCK_COMMAND = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--extra cpu --extra postgres --extra cmaes \
	--group model --group test --group dev --no-annotate --no-header --custom-compile-command "make lock" pyproject.toml

lock: $(READY)
	$(LOCK_COMMAND) --output-file $(LOCK)

# The lock is current if compiling it again, starting from itself, changes nothing.
lock-check: $(READY)
	@cp $(LOCK) $(VENV)/lock-check.txt
	@$(LOCK_COMMAND) --output-file $(VENV)/lock-check.txt
	@diff -q $(LOCK) $(VENV)/lock-check.txt >/dev/null || { echo "$(LOCK) does not match pyproject.toml: run make lock"; exit 1; }

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache
