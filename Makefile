# Every target is written out as plain commands in README.md.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

.PHONY: run test setup check bench lint clean

run: setup  ## train seven methods on digits and compare them (about a minute)
	$(BIN)/idiolect run examples/digits.yaml

test: setup  ## everything that must pass
	$(MAKE) --no-print-directory check

setup: $(STAMP)  ## .venv with the package and what its tests need

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint  ## what continuous integration runs: style, types, layers, tests
	$(BIN)/python -m pytest -n 2

bench: setup  ## ratios, each from one run
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
