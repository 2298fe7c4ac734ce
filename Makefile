# One verb, one target. `make help` lists them; `make demo` and `make test` need nothing installed before.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 3
OFTEN := not compose and not chaos and not faults and not slow
FAULTS ?= 8
# the tests start hundreds of processes: none of them is to compile the sources anew
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
TEST := OMP_NUM_THREADS=1 $(PYTEST)

.DEFAULT_GOAL := help
.PHONY: help env demo test test-long test-fast test-slow test-gpu test-compose test-chaos test-faults coverage lint format bench lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1	/' | expand -t 22

demo: $(VENV)/.runtime ## train a federated model on this machine, with a status page (about ten seconds); SECURE=1: by secure sums
	@$(BIN)/python -m feddisco demo $(if $(PORT),--port $(PORT)) $(if $(SECURE),--secure)

test: $(VENV)/.dev ## lint, types, and nearly all tests, on SQLite and PostgreSQL: about ten minutes on two cores
	@tools/system-packages.sh
	@$(MAKE) --no-print-directory lint
	@$(TEST) -n $(WORKERS) --dist loadgroup -m "$(OFTEN) and not long" $(PYTEST_ARGS)

test-long: $(VENV)/.dev ## the rest of what CI runs: the browser, most real processes, whatever takes long
	@tools/system-packages.sh
	@$(TEST) -n $(WORKERS) --dist loadgroup -m "$(OFTEN) and long" $(PYTEST_ARGS)

test-fast: $(VENV)/.dev ## what of make test needs neither a browser nor processes, without lint
	@$(TEST) -n $(WORKERS) -m "$(OFTEN) and not long and not browser and not e2e" $(PYTEST_ARGS)

test-slow: $(VENV)/.dev ## what takes minutes: Ray, interrupted benchmarks, further kills and demos
	@$(TEST) -n $(WORKERS) --dist loadgroup -m slow $(PYTEST_ARGS)

test-gpu: $(VENV)/.dev ## what has to hold on an NVIDIA GPU; without one it says so, and compares the CPU with itself
	@$(PYTEST) tests/gpu -q $(PYTEST_ARGS)

test-compose: $(VENV)/.dev ## docker compose up, scale, stop and go on, with real containers (needs Docker)
	@$(PYTEST) tests/compose -m compose $(PYTEST_ARGS)

test-chaos: $(VENV)/.dev ## kill -9 of coordinator and workers at every step, the same final model each time
	@$(TEST) tests/e2e -m chaos $(PYTEST_ARGS)

test-faults: $(VENV)/.dev ## random faults in real processes on both databases, as many as FAULTS says, and a checker of what was promised
	@$(TEST) tests/faults -m faults --faults $(FAULTS) $(PYTEST_ARGS)

coverage: $(VENV)/.dev ## branch coverage of what every model depends on, and the lines that no test reaches
	@$(TEST) -n $(WORKERS) --dist loadgroup -m "$(OFTEN) and not browser and not e2e" \
		--cov --cov-report= $(PYTEST_ARGS)
	@for part in shared server/lifecycle server/runs; do echo "$$part"; $(BIN)/coverage report --include="$$part/*" || exit 1; done

lint: $(VENV)/.dev ## ruff, mypy --strict
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy -p shared -p server -p worker -p simulation -p feddisco -p experiments -p benchmarks -p tests

format: $(VENV)/.dev ## write what ruff would write
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.dev ## the figures of docs/benchmarks.md, one JSON line each
	@for part in aggregation coordinator overhead secure polling viewers load transfer simulation; do OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks.$$part || exit 1; done
	@OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks.overhead --large
	@OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks.coordinator --large
	@OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks.simulation --task texts

lock: $(VENV)/.dev ## resolve pyproject.toml anew into the two hashed requirement files
	@$(BIN)/pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--extra build --extra s3 --extra oidc pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--extra build --extra s3 --extra oidc --extra dev -c requirements.lock pyproject.toml -o requirements-dev.lock

env: ## write .env with fresh secrets for docker compose
	@tools/make-env.sh

clean: ## remove the virtual environment and what runs left here
	rm -rf $(VENV) .coverage .demo feddisco-data .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/pip:
	@tools/check-python.sh "$(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/pip requirements.lock pyproject.toml
	@echo "Installing the tested versions into $(VENV) (PyTorch is large: some minutes the first time) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@
