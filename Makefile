# Every target works in a clean clone: it first makes .venv (Python 3.11 or newer with venv; PYTHON=... names another).
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
CODE := $(wildcard src tests scripts examples benchmarks)
MODEL := .demo/model
# More arguments for pytest: make test ARGS="tests/lineage -k head"
ARGS ?=

.PHONY: help install demo test long matrix lint types architecture bench sandbox system clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## make .venv with the tested version of everything and stepctl itself
	@PYTHON="$(PYTHON)" scripts/install.sh

demo: install ## train a real small model in three calls and watch its held-out loss fall (about 3 minutes, 2 GB of memory)
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/demo.sh

test: install ## run the tests, but for the long rehearsals of other machines
	$(BIN)/python -m pytest -m "not long" --numprocesses auto --dist loadfile $(ARGS)

long: install ## run the long rehearsals of other machines (several minutes; root on Linux, make system)
	$(BIN)/python -m pytest -m long --numprocesses auto --dist loadfile $(ARGS)

matrix: install ## kill the client at every call of a rented run, with all faults (an hour; root on Linux, make system)
	STEPCTL_MATRIX=all $(BIN)/python -m pytest --numprocesses auto --dist load tests/matrix $(ARGS)

lint: install ## check style and format
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: install ## check the types
	$(BIN)/mypy

architecture: install ## check which room imports which, and that the generated documents are current
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_docs.py --check

bench: install ## time a cold call, buckets, transfers, judging and pods against baselines of the same run (several minutes)
	$(BIN)/python scripts/demo_model.py $(MODEL)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/cold_call.py --model $(MODEL) --out build/cold_call.json
	$(BIN)/python benchmarks/bucket.py --out build/bucket.json
	$(BIN)/python benchmarks/transfer.py --out build/transfer.json
	$(BIN)/python benchmarks/traces.py --model $(MODEL) --out build/traces.json
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/first_step.py --model $(MODEL) --out build/first_step.json

sandbox: install ## rehearse on an emulated Runpod: starts it here, until Ctrl-C (root on Linux; docs/sandbox.md)
	@$(BIN)/python scripts/demo_model.py $(MODEL)
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/sandbox.sh --model $(MODEL) $(ARGS)

# openssh-server: real sshd, for tests of training over ssh (as the user who runs them) and in emulated pods. nftables and
# iproute2: the pods' networks. The others are what a pod may have or lack.
PACKAGES := openssh-server nftables iproute2 busybox dash curl wget rsync perl openssl
system: ## install the system packages that tests and the sandbox use (Debian and Ubuntu; sudo unless root)
	@sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	$$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $(PACKAGES)

clean: ## remove .venv, the demo, caches and build results; never checkpoints or runs
	rm -rf .venv .demo .sandbox build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
