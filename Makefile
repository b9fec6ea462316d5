# Everything a developer runs. `make demo` and `make test` need only a Python: they set up $(VENV) themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
FUZZ_MINUTES ?= 10
FUZZ_SEED ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test exhaustive fuzz check format docs site clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make or update the virtual environment (instant when nothing changed)
	@$(PYTHON) scripts/bootstrap --venv $(VENV) --quiet

demo: ## Profile BERT here, analyze a trace recorded on an H200, name the page to open; installs no tools
	@$(PYTHON) scripts/bootstrap --venv $(VENV) --quiet --demo
	@$(BIN)/python scripts/demo.py

test: setup ## Run the whole test suite; PYTEST_ARGS="-k name -x" is passed on
	@$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

exhaustive: setup ## Every trace: what verbs print of it as before, laws that hold for it; what is slow
	@$(BIN)/python -m pytest -n auto -m 'exhaustive or hypothesis' --every-source $(PYTEST_ARGS)

fuzz: setup ## Mutated inputs of every reader for FUZZ_MINUTES (seed FUZZ_SEED); what fails is kept in fuzz-failures/
	@PYTHONPATH=src:tests $(BIN)/python tests/fuzz/fuzz.py --seconds $$(($(FUZZ_MINUTES) * 60)) --seed $(FUZZ_SEED) --keep fuzz-failures
	@OPSCOPE_SCAN_CASES=$$(($(FUZZ_MINUTES) * 10000)) $(BIN)/python -m pytest -q tests/unit/ingest/test_scan.py -k undefined -m exhaustive --every-source

check: setup ## Run every check that is not a test: format, lint, types, layers, docs, fragments, links
	@VENV=$(VENV) scripts/check

format: setup ## Format the code and fix what the linter can fix
	@$(BIN)/python -m ruff check --fix --quiet . || true
	@$(BIN)/python -m ruff format .

docs: setup ## Write the generated pages and every shown output anew
	@$(BIN)/python scripts/generate_docs.py
	@$(BIN)/python scripts/page_outputs.py

site: setup ## Build the documentation into site/, which needs no network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean: ## Remove caches, build results and outputs (not the virtual environment)
	@rm -rf build dist site htmlcov .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@rm -rf opscope_output profiling_results examples/bert/profiling_results
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
