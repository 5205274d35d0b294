# One command does one thing, and sets up whatever it needs first: `make demo`, `make test`.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

# Stamps: a set-up step runs again only when what it depends on has changed.
MADE      := $(VENV)/.made
INSTALLED := $(VENV)/.installed
EXAMPLES  := $(VENV)/.examples
DEV       := $(VENV)/.dev
METADATA  := pyproject.toml $(wildcard src/rowlock/_version.py)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo example-birdsong test lint bench chaos clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter of a new environment, VENV=folder its place,"
	@echo "  ARGS='...' is handed to pytest (test, chaos), to the demo, the example or the benchmarks."

$(MADE):
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("rowlock needs Python 3.10 or later, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11")'
	@echo "Making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(INSTALLED): $(MADE) $(METADATA)
	@echo "Installing rowlock ..."
	@$(PIP) -e .
	@touch $@

$(EXAMPLES): $(MADE) $(METADATA)
	@echo "Installing rowlock and what its examples need ..."
	@$(PIP) -e '.[examples]'
	@touch $(INSTALLED) $@

$(DEV): $(MADE) $(METADATA)
	@echo "Installing rowlock and its development tools ..."
	@$(PIP) -e '.[dev]'
	@touch $(INSTALLED) $(EXAMPLES) $@

venv: $(DEV) ## make the environment with all development tools

demo: $(INSTALLED) ## run a small real workload on SQLite
	@$(BIN)/rowlock demo $(ARGS)

example-birdsong: $(EXAMPLES) ## record, analyse, upload and delete birdsong, with a kill -9
	@rm -rf build/birdsong
	@$(BIN)/python -m examples.birdsong build/birdsong $(ARGS)

# The tests start hundreds of processes, and without bytecode each of them would compile all of rowlock.
unexport PYTHONDONTWRITEBYTECODE

# More processes than cores: most of the time the tests wait for servers and child processes.
test: $(DEV) ## run the whole suite with coverage
	$(BIN)/python -m pytest -n 3 -m "not chaos" --cov $(ARGS)

lint: $(DEV) ## check style, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(DEV) ## measure speed beside hand-written code, on SQLite and PostgreSQL
	@$(BIN)/python -m benchmarks $(ARGS)

# One after the other and without capture: each storm prints its seed and its figures.
chaos: $(DEV) ## break things on purpose: kills, freezes, poison (long)
	$(BIN)/python -m pytest -m chaos -n 0 -s $(ARGS)

clean: ## remove the environment and everything generated
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
