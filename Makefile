.DEFAULT_GOAL := help
.PHONY: help setup run up test test-unit test-versions test-node test-storm fuzz audit faults check bench bench-short format requirements clean docs test-debian
SHELL := /bin/sh
PY := .venv/bin/python
export PYTHONUNBUFFERED := 1

help: ## list the targets
	@echo "Holdfast: delay, sticky VMs and placement for Kubernetes, beside the stock scheduler"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready ## install everything that is pinned into .venv

.venv/.ready: requirements-dev.txt pyproject.toml scripts/setup
	@scripts/setup

run: setup ## build a real Kubernetes, hold a pod for 15 s on it, release it, and stop
	@$(PY) -m demo run

up: setup ## run a cluster with Holdfast in it until Ctrl-C, for you to try
	@$(PY) -m demo up

test: setup ## all tests, those on the real control plane too
	@scripts/test

test-unit: setup ## the pure tests alone, in seconds
	@$(PY) -m pytest tests/unit -q

test-versions: setup ## the tests on the real control plane again, on each older Kubernetes
	@scripts/test-versions

test-node: setup ## install the manifests on a real node, and harm them (Linux, root)
	@scripts/test-node

test-debian: setup ## the status page in a real Chromium, the alerts read by promtool (Debian)
	@scripts/test-debian

test-storm: setup ## 200 VMs started and stopped for five minutes while Holdfast is killed
	@STORM_VMS=200 STORM_SECONDS=300 $(PY) -m pytest tests/e2e/test_sticky_storm.py -q -s -n 0

fuzz: setup ## fuzz reviews, beside them files and values, for FUZZ_SECONDS (an hour)
	@scripts/fuzz

faults: setup ## every fault of the list on a real Kubernetes under load, in some two hours
	@$(PY) -m controlplane build kubernetes kubevirt >/dev/null
	@$(PY) -m tests.faults

audit: setup ## ask whether what is pinned is known to be vulnerable (network, ADVISORIES=FOLDER, GO_ADVISORIES=FOLDER)
	@scripts/audit

check: setup ## format, lint, types, the walls between the rooms, and the docs
	@scripts/check

docs: setup ## make the site of the docs, with every link checked: build/site/index.html
	@scripts/docs

bench: setup ## measure Holdfast beside its peers, in about an hour
	@$(PY) -m bench

bench-short: setup ## only show that every row of the bench still works
	@$(PY) -m bench --short

format: setup ## let ruff format the code
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix .

requirements: setup ## pin again, with hashes and without index addresses
	@scripts/requirements

clean: ## remove .venv and build/ (the built control plane stays in the user's cache)
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
