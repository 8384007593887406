VENV := .venv
PYTHON ?= python3
INSTALLED := $(VENV)/.installed
# The demo and every Celery worker look for modules where they are started.
BIN := $(CURDIR)/$(VENV)/bin
# An emulator fast enough not to be the limit, apart from the others since it pins botocore.
EMULATOR_VENV := benchmarks/.venv
EMULATOR := $(EMULATOR_VENV)/.installed
# An emulator that runs without Docker, and pins much.
LOCALSTACK := .venvs/localstack/.installed
# Other task queues on SQS, whose boto3 is another.
PEERS := benchmarks/.peers/.installed
COVERAGE := $(VENV)/.coverage
# The demo's few packages, so that nobody waits for the tests' and the linters'.
DEMO := .venvs/demo/.installed
# Flower and celery-exporter, apart from the tests: see the group in pyproject.toml.
MONITORS := .venvs/monitors/.installed
# Packages that extend Celery or watch it, and what their tests need.
OTHERS := .venvs/others/.installed
# Airflow, which has an older Celery.
AIRFLOW := .venvs/airflow/.installed
# Sphinx, which needs another docutils than the tests.
SPHINX := .venvs/docs/.installed
# One for each version of Celery and kombu that we claim.
MATRIX := .venvs
VERSIONS := 5.5 5.6 5.7
# All but what `.venv` has.
OLDER := 5.5 5.6
# The tests' environment with mutmut, which `make test` does without.
MUTANTS := $(MATRIX)/mutants/.installed
BOUNDS := tests/unit/cost_bounds.json
TESTS := tests/unit tests/worker
AT_ONCE ?= 8
# Most of the time the tests wait for real workers: eight at once are no burden to two cores, in the order of
# tests/support/order.py. The slowest are named at the end. PYTEST_OPTIONS has further ones, such as --programs=require.
TOGETHER := -n $(AT_ONCE) --dist loadscope --no-loadscope-reorder --durations 25 --durations-min 2
ENDS := $(wildcard tests/unit/test_*.py) $(patsubst %,tests/worker/test_%.py,canvas cold_shutdowns connecting_anew crashes \
	deploys ends)
# What `.ci/run` runs on another server than `make test`: see tests/support/servers.py.
PART := dead_letters ends error_visibility fanout fifo remote_control

# Tests start a thousand processes: without bytecode each of them compiles the package anew, for half a second.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo quick test test-pools coverage behaviours servers servers-part containers others matrix matrix-ends matrix-pools reliability soak model bench cost growth mutants picture recording reference timelines docs check package release clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

demo: $(DEMO) ## Watch a worker, an SQS of its own and eleven tasks, for some ten seconds
	@cd examples && $(CURDIR)/$(<D)/bin/python -m demo

quick: $(INSTALLED) ## Run what a change needs in a minute: unit and conformance tests, but for the slow ones
	@$(BIN)/python -m pytest -n 2 --dist worksteal tests/unit tests/conformance -m 'not slow' \
		--hypothesis-profile quick $(PYTEST_OPTIONS)

test: $(INSTALLED) $(MONITORS) ## Run every test, but for those of `make test-pools`
	@$(BIN)/python -m pytest $(TOGETHER) --repeated without $(PYTEST_OPTIONS)

test-pools: $(INSTALLED) ## Run the worker tests that repeat on solo, gevent and eventlet what `make test` shows
	@$(BIN)/python -m pytest $(TOGETHER) --repeated only tests/worker $(PYTEST_OPTIONS)

coverage: $(INSTALLED) $(MONITORS) $(COVERAGE) ## Run every test, count lines and branches in all processes, and list what was not run
	@rm -rf build/coverage && mkdir -p build/coverage
	@status=0; PYTHONPATH=$(CURDIR)/tests $(BIN)/coverage run --rcfile tests/coverage.ini -m pytest $(TOGETHER) \
		$(PYTEST_OPTIONS) || status=1; \
	export PYTHONPATH=$(CURDIR)/tests; $(BIN)/coverage combine --quiet --rcfile tests/coverage.ini && \
	$(BIN)/coverage json --quiet --rcfile tests/coverage.ini && \
	$(BIN)/coverage report --rcfile tests/coverage.ini && $(BIN)/python -m support.uncovered && exit $$status

# With AWS_CONFORMANCE=1 and credentials on AWS, too, whose answers become those of the rows.
behaviours: $(INSTALLED) $(EMULATOR) $(LOCALSTACK) ## Replay tests/conformance/behaviours.jsonl on every emulator; rewrite deviations and docs/fidelity.md
	@cd tests && $(BIN)/python -m support.behaviours

# All three emulators, and the fake once for each of its switches; SERVERS=ministack for one of them.
servers: $(INSTALLED) $(EMULATOR) $(LOCALSTACK) ## Run the worker tests of what SQS decides on every server that speaks SQS
	@cd tests && $(BIN)/python -m support.servers $(SERVERS) $(if $(MODULES),--modules '$(MODULES)') --pytest='$(TOGETHER) $(PYTEST_OPTIONS)'

servers-part: $(INSTALLED) $(EMULATOR) ## Of these, what takes three minutes: a part of them on ministack
	@cd tests && $(BIN)/python -m support.servers ministack --modules '$(PART)' --pytest='$(TOGETHER) $(PYTEST_OPTIONS)'

matrix: $(VERSIONS:%=$(MATRIX)/celery-%/.installed) $(MONITORS) ## Run unit and worker tests on the newest Celery 5.5, 5.6 and 5.7
	@failed=; for version in $(VERSIONS); do \
		$(MATRIX)/celery-$$version/bin/python -c 'import celery, kombu; print("Celery", celery.__version__, "kombu", kombu.__version__)'; \
		$(MATRIX)/celery-$$version/bin/python -m pytest $(TOGETHER) $(TESTS) $(PYTEST_OPTIONS) || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed on Celery$$failed"; exit 1; }

matrix-ends: ## Of these, the tests of settlements, shutdowns and crashes, on 5.5 and 5.6 (`make test` has 5.7)
	@$(MAKE) --no-print-directory matrix VERSIONS='5.5 5.6' TESTS='$(ENDS)'

matrix-pools: $(INSTALLED) $(MONITORS) ## Run all worker tests on the pools without processes
	@for pool in threads gevent eventlet; do \
		$(BIN)/python -m pytest $(TOGETHER) tests/worker --pool $$pool $(PYTEST_OPTIONS) || exit 1; \
	done

# Three at once: recovery is timed.
reliability: $(INSTALLED) ## Run the tests of faults and rewrite the table of docs/reliability.md
	@$(BIN)/python -m pytest -n 3 --dist worksteal tests --reliability docs/reliability.md

soak: $(INSTALLED) ## Watch a worker at full load for ten minutes, or MINUTES=n
	@$(BIN)/python benchmarks/soak.py --minutes $(or $(MINUTES),10)

model: $(INSTALLED) ## Try 200,000 steps of two models, or STEPS=n of MODEL=holding or whole, or the world of SEED=n again
	@cd tests && $(BIN)/python -m support.models.soak --steps $(or $(STEPS),200000) \
		$(if $(MODEL),--model $(MODEL)) $(if $(SEED),--seed $(SEED))

# Forty minutes, on a machine that does nothing else.
bench: $(INSTALLED) $(EMULATOR) $(PEERS) ## Run the benchmarks and rewrite docs/benchmarks.md
	@$(BIN)/python benchmarks/bench.py --write docs/benchmarks.md --json docs/benchmarks/run.json

# The bounds of older Celerys too, and the page of the newest.
cost: $(INSTALLED) $(OLDER:%=$(MATRIX)/celery-%/.installed) ## Count what a task costs, and rewrite docs/benchmarks.md and the bounds of its test
	@for version in $(OLDER); do \
		$(MATRIX)/celery-$$version/bin/python benchmarks/cost.py --no-instructions --bounds $(BOUNDS) || exit 1; \
	done
	@$(BIN)/python benchmarks/cost.py --bounds $(BOUNDS) --write docs/benchmarks.md

# Less than ten minutes, on a machine that does nothing else.
growth: $(INSTALLED) ## Measure what grows with size, rewrite docs/benchmarks.md, and fail where it grows too fast
	@$(BIN)/python benchmarks/growth.py --write docs/benchmarks.md --json docs/benchmarks/growth.json

# An hour and more with all five rooms; MODULES=control/inbox SHARE=1 is a module, whole. mutmut works where it is
# started, and leaves what it knows in build/mutants.
mutants: $(MUTANTS) ## Change a quarter of the code's places, SHARE=n, and see which changes unit tests notice, in MODULES=...
	@mkdir -p build/mutants
	@ln -sfn $(addprefix $(CURDIR)/,celery_sqs_visibility tests examples benchmarks pyproject.toml) build/mutants/
	@cd build/mutants && for each in $(or $(MODULES),core stores control worker delivery); do \
		nice -n 10 $(CURDIR)/$(<D)/bin/python benchmarks/mutants.py $$each --share $(or $(SHARE),0.25) \
			--least $(or $(LEAST),5) $(if $(AGAIN),--again) \
			--write $(CURDIR)/docs/contributing/tests.md || exit 1; \
	done

picture: $(INSTALLED) ## Draw the rooms of docs/architecture.md from the contracts in pyproject.toml
	@cd tests && $(BIN)/python -m support.rooms

reference: $(INSTALLED) ## Write the reference in docs/ from the code
	@cd tests && $(BIN)/python -m support.reference

timelines: $(INSTALLED) ## Run the workers of docs/visibility.md, and draw its pictures from what they said
	@$(BIN)/python benchmarks/timelines.py

# A broken link, an unknown heading and a page without a place in the navigation are errors.
docs: $(INSTALLED) $(SPHINX) ## Build the documentation site into build/site, and look at it with Chromium
	@rm -rf build/site
	@.venvs/docs/bin/python docs/site/pages.py build/pages
	@.venvs/docs/bin/python -m sphinx -q -W --keep-going -E -j 2 -c docs/site build/pages build/site
	@$(BIN)/python -m pytest -n 2 --dist loadgroup tests/site/check_site.py $(PYTEST_OPTIONS)

recording: $(INSTALLED) ## Record `make demo` as docs/pictures/demo.svg
	@$(BIN)/python benchmarks/recording.py

check: $(INSTALLED) ## Run the linters, the type checker, the speller, and the workflows' schemas
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml

# Needs a Docker engine, and root for the scene that drops packets; without an engine all are skipped.
containers: $(INSTALLED) ## Run workers in containers, and rewrite the second table of docs/reliability.md
	@$(BIN)/python -m pytest tests/containers/check_scenes.py --show-capture no --accounts docs/reliability.md $(PYTEST_OPTIONS)
	@SQS_TEST_NODES=docker $(BIN)/python -m pytest tests/e2e $(PYTEST_OPTIONS)

others: $(OTHERS) $(AIRFLOW) ## Run others' tests on this transport, and rewrite the table of docs/compatibility.md
	@cd tests && $(CURDIR)/.venvs/others/bin/python -m others.run
	@.venvs/airflow/bin/python -m pytest -W default --programs require tests/others/check_airflow.py

# Each into an environment of its own that has nothing but the package and its dependencies.
package: $(INSTALLED) ## Build wheel and sdist into dist/, check them, and install each in a clean environment
	@rm -rf dist $(MATRIX)/wheel $(MATRIX)/sdist
	@if command -v uv >/dev/null; then uv build --quiet --out-dir dist; else $(BIN)/python -m build --outdir dist; fi
	@$(BIN)/python -m twine check --strict dist/*
	@$(MAKE) --no-print-directory $(MATRIX)/wheel/.installed $(MATRIX)/sdist/.installed
	@$(BIN)/python -m pytest tests/package/check_distributions.py

# Says what is to be done, and uploads nothing.
release: package ## Do everything of a release up to the upload: docs/contributing/releasing.md
	@$(BIN)/python tests/package/release.py

clean: ## Remove the virtual environments and all caches
	rm -rf $(VENV) $(MATRIX) $(EMULATOR_VENV) benchmarks/.peers build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call install,ENVIRONMENT,ARGUMENTS): uv where it is installed. Otherwise pip: PYTHON's own, which saves the 3 s of a
# new one; with --group one of the environment's own, that knows it.
define install
@if command -v uv >/dev/null; then \
	test -x $(1)/bin/python || uv venv --quiet --python $(PYTHON) $(1) && \
	uv pip install --quiet --python $(1)/bin/python $(2); \
elif test -z '$(findstring --group,$(2))' && $(PYTHON) -m pip --help 2>/dev/null | grep -q -e --python; then \
	test -x $(1)/bin/python || $(PYTHON) -m venv --without-pip $(1) && \
	$(PYTHON) -m pip --python $(1)/bin/python install --quiet --disable-pip-version-check $(2); \
else \
	test -x $(1)/bin/pip || $(PYTHON) -m venv --clear $(1) && \
	{ $(1)/bin/python -m pip install --help | grep -q -e --group || \
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'; } && \
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2); \
fi
@touch $@
endef

$(INSTALLED): pyproject.toml constraints.txt
	$(call install,$(VENV),-c constraints.txt -e . --group test --group check --group package)
	@# Compiles the tests once: in the first run, all of pytest's processes would.
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || true

# Bytecode is made of what is imported, and not of everything.
$(DEMO): pyproject.toml constraints.txt
	@mkdir -p $(MATRIX)
	$(call install,$(@D),--no-compile -c constraints.txt -e '.[local]' rich)

# As the tests', but for Celery and its own libraries.
$(MATRIX)/celery-%/.installed: pyproject.toml constraints.txt
	@mkdir -p $(MATRIX)
	@grep -vE '^(amqp|billiard|celery|kombu|vine)==' constraints.txt >$(MATRIX)/constraints-$*.txt
	$(call install,$(@D),-c $(MATRIX)/constraints-$*.txt 'celery==$*.*' 'kombu==$*.*' -e . --group test)

$(MATRIX)/wheel/.installed:
	$(call install,$(@D),-c constraints.txt dist/*.whl)

$(MATRIX)/sdist/.installed:
	$(call install,$(@D),-c constraints.txt dist/*.tar.gz)

$(COVERAGE): $(INSTALLED)
	$(call install,$(VENV),-c constraints.txt coverage==7.17.3)

$(MUTANTS): pyproject.toml constraints.txt
	$(call install,$(@D),-c constraints.txt -e . --group mutants)

$(EMULATOR): Makefile
	$(call install,$(EMULATOR_VENV),ministack==1.5.33)

# What 4.8 was released with: newer ones of these have lost what it calls.
$(LOCALSTACK): Makefile
	@mkdir -p $(MATRIX)
	$(call install,$(@D),'localstack-core[base-runtime]==4.8.1' moto-ext==5.1.54 cbor2==5.6.5 cryptography==43.0.3 Jinja2 pyopenssl==24.2.1 responses service-identity==24.2.0)

# axe's script comes in a package for another browser driver, which is left out; Sphinx is there.
$(SPHINX): pyproject.toml constraints.txt Makefile
	@mkdir -p $(MATRIX)
	@grep -v '^docutils==' constraints.txt >$(MATRIX)/constraints-docs.txt
	$(call install,$(@D),-c $(MATRIX)/constraints-docs.txt --group docs)
	$(call install,$(@D),--no-deps axe-playwright-python==0.1.8 sphinx-copybutton==0.5.2)

$(PEERS): Makefile
	$(call install,benchmarks/.peers,dramatiq==2.2.1 dramatiq-sqs==0.4.4 taskiq==0.13.0 taskiq-aio-sqs==2.1.1)

# The last two ask for a Celery before 5.7, and for the SDK of one release.
$(OTHERS): pyproject.toml constraints.txt
	@mkdir -p $(MATRIX)
	$(call install,$(@D),-c constraints.txt -e . --group others)
	$(call install,$(@D),--no-deps celery-batches==0.11 opentelemetry-test-utils==0.66b1)

# These are another file's.
$(AIRFLOW): pyproject.toml constraints.txt tests/others/airflow_constraints.txt
	@mkdir -p $(MATRIX)
	@grep -vE '^(amqp|billiard|celery|kombu|redis|vine)==' constraints.txt >$(MATRIX)/constraints-airflow.txt
	$(call install,$(@D),-c $(MATRIX)/constraints-airflow.txt -c tests/others/airflow_constraints.txt -e . --group airflow)

$(MONITORS): pyproject.toml constraints.txt
	@mkdir -p $(MATRIX)
	@grep -vE '^(prometheus_client|redis)==' constraints.txt >$(MATRIX)/constraints-monitors.txt
	$(call install,$(@D),-c $(MATRIX)/constraints-monitors.txt -e . --group monitors)
