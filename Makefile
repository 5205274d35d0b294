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
.PHONY: help venv demo example-birdsong example-segmentation example-video test matrix lint bench chaos clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
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

example-segmentation: $(EXAMPLES) ## segment images on RQ workers, with a kill -9 and a flushed Redis
	@rm -rf build/segmentation
	@$(BIN)/python -m examples.segmentation build/segmentation $(ARGS)

example-video: $(EXAMPLES) ## process uploaded videos, data and jobs in one DuckDB file, with a kill -9
	@rm -rf build/video
	@$(BIN)/python -m examples.video_api build/video $(ARGS)

# The tests start hundreds of processes, and without bytecode each of them would compile all of rowlock.
unexport PYTHONDONTWRITEBYTECODE

# More processes than cores: half of the time the tests wait for servers and child processes. Each process begins in
# another folder (worksteal), so that those which wait and those which compute run beside each other.
test: $(DEV) ## run the whole suite with coverage
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not chaos" --cov $(ARGS)

# Versions beside those of `make test`, each pair in an environment of its own; all else comes from $(VENV).
MATRIX := build/matrix
TRY    := -m pytest -q -n 2 -m "not chaos" -p no:cacheprovider

$(MATRIX)/duckdb-%/.made: $(DEV)
	@echo "Making $(@D) ..."
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check \
		'duckdb~=$(word 1,$(subst -sqlalchemy-, ,$*)).0' 'sqlalchemy~=$(word 2,$(subst -sqlalchemy-, ,$*)).0'
	@$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		> "$$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')/rest.pth"
	@touch $@

matrix: $(MATRIX)/duckdb-1.5-sqlalchemy-2.0/.made $(MATRIX)/duckdb-1.5-sqlalchemy-2.1/.made \
		$(MATRIX)/duckdb-2.0-sqlalchemy-2.0/.made ## try DuckDB 1.5 and 2.0 with SQLAlchemy 2.0 and 2.1, file mode whole
	$(MATRIX)/duckdb-1.5-sqlalchemy-2.0/bin/python $(TRY) tests/stores/duckdb tests/stores/conformance -k duckdb \
		--whole-file-mode
	$(MATRIX)/duckdb-1.5-sqlalchemy-2.1/bin/python $(TRY) tests/stores/duckdb/test_owner.py
	$(MATRIX)/duckdb-2.0-sqlalchemy-2.0/bin/python $(TRY) tests/stores/duckdb/test_owner.py
	$(MATRIX)/duckdb-2.0-sqlalchemy-2.0/bin/python $(TRY) tests/stores/conformance -k duckdb-file --whole-file-mode

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
