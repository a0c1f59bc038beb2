.DEFAULT_GOAL := help
.PHONY: release help setup run up test test-slow test-unit coverage test-versions test-node test-storm fuzz audit faults check prose bench bench-short format requirements clean docs test-debian
SHELL := /bin/sh
PY := .venv/bin/python
export PYTHONUNBUFFERED := 1

help: ## list the targets
	@echo "Holdfast: delay, sticky VMs and placement for Kubernetes, with the stock scheduler"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready ## install the pinned requirements into .venv

.venv/.ready: requirements-dev.txt pyproject.toml scripts/setup
	@scripts/setup

run: setup ## build a real Kubernetes, hold a pod on it for 15 s, release it, and stop
	@$(PY) -m demo run

up: setup ## run a cluster with Holdfast until Ctrl-C, to try it out
	@$(PY) -m demo up

test: setup ## run the tests, including those on a real control plane
	@scripts/test

test-slow: setup ## run the tests that take minutes each, the benchmarks' rows and the faults in short
	@scripts/test-slow

test-unit: setup ## run the unit tests, in seconds
	@$(PY) -m pytest tests/unit -q

coverage: setup ## measure the coverage of the unit, tooling and server tests
	@$(PY) -m pytest -n 2 -q --cov --cov-report=term tests/unit tests/tooling tests/server

test-versions: setup ## run the end-to-end tests on each older Kubernetes
	@scripts/test-versions

test-node: setup ## test the installed manifests on a real node (Linux, root)
	@scripts/test-node

test-debian: setup ## test the status page in Chromium, the alerts with promtool, and completion (Debian)
	@scripts/test-debian

test-storm: setup ## start and stop 200 VMs for five minutes while Holdfast is killed
	@STORM_VMS=200 STORM_SECONDS=300 $(PY) -m pytest tests/e2e/test_sticky_storm.py -q -s -n 0

fuzz: setup ## fuzz reviews, files and values for FUZZ_SECONDS (an hour)
	@scripts/fuzz

faults: setup ## inject every fault into a real Kubernetes under load, in about 100 minutes
	@$(PY) -m controlplane build kubernetes kubevirt >/dev/null
	@$(PY) -m tests.faults

audit: setup ## check pinned versions for known vulnerabilities (status 2: not audited)
	@scripts/audit

check: setup ## check format, lint, types, imports between packages, prose, and the docs
	@scripts/check

release: setup ## make the files of a release in dist/: make release VERSION=0.1.0 (Linux, root)
	@scripts/release $(VERSION) $(if $(REPOSITORY),--repository $(REPOSITORY)) $(if $(DOWNLOADS),--downloads $(DOWNLOADS))

prose: setup ## check the English of pages, docstrings, comments and messages
	@scripts/prose

docs: setup ## build the docs site with every link checked: build/site/index.html
	@scripts/docs

bench: setup ## measure Holdfast and its peers, in about an hour
	@$(PY) -m bench

bench-short: setup ## run every row of the benchmark once, briefly
	@$(PY) -m bench --short

format: setup ## format the code with ruff
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix .

requirements: setup ## update the pinned requirements, with hashes and without index addresses
	@scripts/requirements

clean: ## remove .venv and build/ (the built control plane stays in the user's cache)
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
