# `make help` lists the targets. Each makes .venv from the exact locks when it is missing or stale.
PYTHON ?= python3
NAME ?=
ARGS ?=
PY := .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help named lint test test-slow test-long test-interpreted verify bench bench-full gpu-check fuzz kernels-report experiment environment \
  environment-dev

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1: /p' $(MAKEFILE_LIST)

environment: ## make .venv from requirements/runtime.lock
	@$(PYTHON) tools/make_venv.py runtime

environment-dev: ## add what requirements/dev.lock pins
	@$(PYTHON) tools/make_venv.py dev

# make itself exits by 2 whenever a command failed; the line printed here names the command's own
# code: 1 audited and failed, 2 invalid input, 3 cannot be evaluated here.
experiment: named environment ## NAME=quickstart [ARGS=...]: run one experiment and audit it
	@$(PY) -m harness run experiment=$(NAME) $(ARGS); code=$$?; \
	  test $$code -eq 0 || echo "exit code $$code"; exit $$code

named:
	@test -n "$(NAME)" || { echo "which experiment? make experiment NAME=quickstart; there are:"; \
	  ls experiments/experiment | sed 's/\.yaml$$//; s/^/  /'; exit 2; }

lint: environment-dev ## formatting, types and the architecture's import contracts
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports

# Two at a time: much of a test's time is the start of its child processes.
test: environment-dev ## the fast tests; no GPU, no network
	@$(PY) -m pytest -m "not slow" -n 2 --dist loadfile $(ARGS)

test-slow: environment-dev ## the tests marked slow
	@$(PY) -m pytest -m "slow and not long" -n 2 --dist loadfile --ignore=tests/kernels/interpreted $(ARGS)

test-long: environment-dev ## slow tests that quicker ones stand for in CI, several minutes
	@$(PY) -m pytest -m long -n 2 --dist loadfile $(ARGS)

test-interpreted: environment-dev ## the slow tests of interpreted kernels, several minutes more
	@$(PY) -m pytest -m slow tests/kernels/interpreted $(ARGS)

verify: environment ## verify and re-audit the committed evidence
	@$(PY) -m harness evidence verify evidence --plans plans

bench: environment-dev ## decode and prefill beside peers, in turn; makes their environments once, in minutes
	@$(PY) -m benchmarks --dtypes bfloat16 $(ARGS)

bench-full: environment-dev ## more rounds, and all else that is measured: loading, context, growth, start-up
	@$(PY) -m benchmarks --full $(ARGS)
	@for part in experts loading context scaling starting; do \
	  echo "== $$part"; $(PY) -m benchmarks.$$part || exit $$?; done

gpu-check: environment-dev ## all that a GPU can show; ARGS=--dry-run shows the check itself, without one
	@$(PY) benchmarks/gpu_check.py $(ARGS)

fuzz: environment ## feed broken inputs to every parser; ARGS="--seconds 600 --seed 2"
	@$(PY) -m tools.fuzz $(ARGS)

kernels-report: environment-dev ## compile every Triton kernel for every target, no GPU; ARGS=--quick: half
	@$(PY) -m tools.kernels_report $(ARGS)
