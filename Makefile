# Everything runs in .venv, which is made on first use and renewed when the dependencies change.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help test check format clean

help: ## say what can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 16

$(READY): pyproject.toml constraints.txt
	@echo "==> installing exitpoll and its pinned dependencies into .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

test: $(READY) ## run the tests, with coverage
	@echo "==> running the tests"
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

check: $(READY) ## lint, format check, types and import contracts
	@echo "==> lint"
	@$(BIN)/ruff check .
	@echo "==> format"
	@$(BIN)/ruff format --check .
	@echo "==> types"
	@$(BIN)/mypy
	@echo "==> import contracts"
	@$(BIN)/lint-imports --no-logo

format: $(READY) ## format the code and mend what the linter can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove .venv and caches
	rm -rf .venv .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
