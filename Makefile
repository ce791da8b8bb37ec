# Every target is written out as plain commands in README.md.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
READY_DEV := .venv/.ready-dev
READY_TESTS := .venv/.ready-tests
READY_DOCS := .venv/.ready-docs

# Without --no-compile, half of the time would go into compiling modules, of which most are never imported. Those that are
# compile then, and that is kept, whatever the environment says: else each import of torch takes twice as long.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# uv installs in seconds what takes pip half a minute, and pip does it where uv cannot. pip downloads PyTorch, because its
# settings say from where and which build; uv installs the rest meanwhile.
TORCH = $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --constraint constraints.txt --dest .venv/torch torch
REST = $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' | grep -v ^torch
UV = $(BIN)/uv pip install --quiet --native-tls --python $(BIN)/python --constraint constraints.txt
INSTALL = $(UV) $(1) || $(PIP) $(1)

.PHONY: run test setup check slow thorough rounding bench docs lint clean

run: $(READY)  ## train seven methods on digits and compare them (about a minute)
	$(BIN)/idiolect run examples/digits.yaml

test: setup  ## make check, by the name that newcomers look for
	$(MAKE) --no-print-directory check

setup: $(READY_DEV)  ## .venv with the package, what tests need, and extras but wandb, flower, timm, docs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) uv
	$(TORCH) & $(REST) | $(UV) --requirement -; wait $$! || true
	$(UV) .venv/torch/*.whl || $(PIP) torch
	rm -rf .venv/torch
	$(call INSTALL,--editable .)
	touch $@

$(READY_DEV): $(READY)
	$(call INSTALL,--editable ".[dev]")
	touch $@

# Each of the processes that run tests would compile all that it imports.
$(READY_TESTS): $(READY_DEV)
	$(BIN)/python -m pytest --collect-only -qq >/dev/null || true
	touch $@

$(READY_DOCS): $(READY)
	$(call INSTALL,--editable ".[docs]")
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: setup  ## style, types, layers, and every test but the slow ones
	$(MAKE) --no-print-directory --jobs 2 lint $(READY_TESTS)
	$(BIN)/python -m pytest -n 3

slow: setup  ## the tests that take more than half of the time, which make test leaves to continuous integration
	$(BIN)/python -m pytest -n 3 --slow

thorough: setup  ## every test with every method, those too for which faster ones stand in make test (an hour)
	$(BIN)/python -m pytest -n 3 --thorough

# The plainest instructions of torch differ from any processor's own. Only what compares numbers that are not bits is here.
rounding: setup  ## tests of the contract, methods and vectorised engine again, as a processor of another kind rounds
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest -n 2 \
	  tests/contract tests/methods tests/engines/test_vectorised.py tests/engines/test_groups.py \
	  tests/simulation/test_client_runner.py \
	  -k "not with_batch_normalisation and not resumes_exactly and not test_learning_rates"

bench: setup  ## ratios, each from one run
	$(BIN)/python benchmarks/run.py

docs: $(READY_DOCS)  ## the documentation's site, site/index.html; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
