VENV := .venv
PYTHON ?= python3
INSTALLED := $(VENV)/.installed
# The demo and every Celery worker look for modules where they are started.
BIN := $(CURDIR)/$(VENV)/bin
# An emulator fast enough not to be the limit, apart from the others since it pins botocore.
EMULATOR_VENV := benchmarks/.venv
EMULATOR := $(EMULATOR_VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-pools reliability soak bench check clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' Makefile

demo: $(INSTALLED) ## Watch a worker, an SQS of its own and eleven tasks, for half a minute
	@cd examples && $(BIN)/python -m demo

# Most of the time the tests wait for real workers: four at once are no burden to two cores.
test: $(INSTALLED) ## Run every test
	@$(BIN)/python -m pytest -n 4 --dist worksteal

test-pools: $(INSTALLED) ## Run the worker tests on the pools without processes too
	@for pool in threads gevent eventlet; do \
		$(BIN)/python -m pytest -n 4 --dist worksteal tests/worker --pool $$pool || exit 1; \
	done

# Three at once: recovery is timed.
reliability: $(INSTALLED) ## Run the tests of faults and rewrite the table of docs/reliability.md
	@$(BIN)/python -m pytest -n 3 --dist worksteal --reliability docs/reliability.md

soak: $(INSTALLED) ## Watch a worker at full load for ten minutes, or MINUTES=n
	@$(BIN)/python benchmarks/soak.py --minutes $(or $(MINUTES),10)

# A quarter of an hour, on a machine that does nothing else.
bench: $(INSTALLED) $(EMULATOR) ## Run the benchmarks and rewrite docs/benchmarks.md
	@$(BIN)/python benchmarks/bench.py --write docs/benchmarks.md --json docs/benchmarks/run.json

check: $(INSTALLED) ## Run the linters, the type checker and the speller
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) $(EMULATOR_VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv where it is installed; venv and pip where not, and a pip that knows --group.
$(INSTALLED): pyproject.toml constraints.txt
	@if command -v uv >/dev/null; then \
		test -x $(VENV)/bin/python || uv venv --quiet --python $(PYTHON) $(VENV) && \
		uv pip install --quiet --python $(VENV)/bin/python -c constraints.txt -e '.[demo]' --group test --group check; \
	else \
		test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV) && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]' --group test --group check; \
	fi
	@touch $@

$(EMULATOR): Makefile
	@if command -v uv >/dev/null; then \
		test -x $(EMULATOR_VENV)/bin/python || uv venv --quiet --python $(PYTHON) $(EMULATOR_VENV) && \
		uv pip install --quiet --python $(EMULATOR_VENV)/bin/python ministack==1.5.33; \
	else \
		test -x $(EMULATOR_VENV)/bin/pip || $(PYTHON) -m venv --clear $(EMULATOR_VENV) && \
		$(EMULATOR_VENV)/bin/python -m pip install --quiet --disable-pip-version-check ministack==1.5.33; \
	fi
	@touch $@
