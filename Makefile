# Every target makes its own set-up first: a fresh machine needs Python 3.11 or later, make and git.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TESTBED := hack/testbed/testbed
T ?= tests

.PHONY: help setup check check-format check-lint check-types check-imports check-sizes test test-without-cluster coverage test-oldest quick slow-tests night lock gen-check releasable bench demo testbed-up testbed-down gen golden docs site contract fuzz mutation crash chaos wheels release publish sign manifests clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

$(VENV)/.installed: requirements/dev.txt pyproject.toml
	@echo "== making $(VENV): locked dependencies, about half a minute"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, this is " + sys.version)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.txt & \
	  pip=$$!; waited_s=0; while kill -0 $$pip 2>/dev/null; do sleep 1; waited_s=$$((waited_s + 1)); \
	  if [ $$((waited_s % 15)) = 0 ]; then echo "   $$waited_s s: pip loads and installs $$(grep -c == requirements/dev.txt) packages"; fi; \
	  done; wait $$pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q neuron_dra controller || true
	@touch $@

setup: $(VENV)/.installed ## Create .venv with all dependencies

CHECKS := check-format check-lint check-types check-imports check-sizes gen-check
check: setup build/gen-venv/.installed ## Check format, lint, types, import contracts, sizes, generated code (20 s with warm caches)
	@$(MAKE) --no-print-directory -j2 $(CHECKS)
	@echo "check: format, lint, types, import contracts, sizes, density and generated code hold"

check-format: setup
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }

check-lint: setup
	@$(BIN)/ruff check --quiet .

check-types: setup | build
	@$(BIN)/$(if $(CI),mypy,dmypy run --timeout 600 --) neuron_dra controller hack tests > build/mypy.log 2>&1 || { cat build/mypy.log; exit 1; }

check-imports: setup | build
	@$(BIN)/lint-imports --no-logo > build/imports.log 2>&1 || { cat build/imports.log; exit 1; }

check-sizes: setup
	@$(BIN)/python -m hack.sizes

build:
	@mkdir -p build

# Each worker would compile all tests if Python were told to write no bytecode.
quick: setup ## Run the tests that take less than 50 ms and need only Python (a minute)
	@unset PYTHONDONTWRITEBYTECODE; $(BIN)/python -m pytest tests/unit tests/contract tests/tools --quick -n 3 --dist worksteal -q

test: setup | build ## Run make check, all unit and contract tests, the stories, and a smoke test on real Kubernetes (T=FILE: some tests)
	@$(if $(filter-out tests,$(T)),$(BIN)/python -m pytest $(T),hack/test.sh)

slow-tests: setup ## Write tests/slow_tests.txt, which `make quick` leaves out, from what the last `make test` measured
	@$(BIN)/python -m hack.slow_tests --write build/results-*.xml

CLUSTER_FREE := -m "not testbed and not tool and not long" -n auto --dist loadfile -q
COVERAGE ?=
test-without-cluster: setup | build ## Run the tests that need no cluster (COVERAGE=1: and measure what they cover)
	@$(BIN)/python -m pytest $(T) $(CLUSTER_FREE) $(if $(COVERAGE),--cov=neuron_dra --cov=controller --cov-report=)

coverage: setup ## Print what the last `make test-without-cluster COVERAGE=1` covered, as Markdown
	@$(BIN)/coverage report --format=markdown

build/oldest-venv/.installed: requirements/dev.txt requirements/oldest.txt pyproject.toml | build
	@$(PYTHON) -m venv build/oldest-venv
	@build/oldest-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.txt
	@build/oldest-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/oldest.txt
	@build/oldest-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

test-oldest: build/oldest-venv/.installed ## Run the tests that need no cluster with the oldest dependencies that are allowed
	@build/oldest-venv/bin/python -m pytest $(T) $(CLUSTER_FREE)

bench: setup | build ## Measure, and print the figures and their targets
	@$(BIN)/python -m hack.bench.node
	@$(BIN)/python -m hack.bench.controller
	@$(BIN)/python -m hack.bench.long_queue
	@$(BIN)/python -m hack.bench.plan
	@$(BIN)/python -m hack.bench.cli

demo: setup ## Show how pods get devices, on simulated nodes, without a cluster
	@$(BIN)/neuron-dra demo

testbed-up: setup ## Start a real Kubernetes with one trn2.48xlarge node and the driver as a DaemonSet
	@$(TESTBED) up --node trn2-0=trn2.48xlarge --driver daemonset

testbed-down: ## Stop the test bed and remove everything
	@$(TESTBED) down

build/gen-venv/.installed: requirements/gen.txt | build
	@$(PYTHON) -m venv build/gen-venv
	@build/gen-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/gen.txt
	@touch $@

gen-check: build/gen-venv/.installed ## Compare neuron_dra/gen with proto/
	@build/gen-venv/bin/python -m hack.generate.proto --check

gen: build/gen-venv/.installed ## Generate neuron_dra/gen from proto/
	@build/gen-venv/bin/python -m hack.generate.proto

build/fuzz-packages/.installed: requirements/fuzz.txt $(VENV)/.installed | build
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade --target build/fuzz-packages -r requirements/fuzz.txt
	@touch $@

INPUTS ?= 1000000
fuzz: build/fuzz-packages/.installed ## Run a million inputs per fuzz target (INPUTS=n), write docs/reports/fuzz.md; takes hours
	@PYTHONPATH=build/fuzz-packages $(BIN)/python -m hack.chaos.fuzz --inputs $(INPUTS) --report

build/mutation-packages/.installed: requirements/mutation.txt $(VENV)/.installed | build
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --upgrade --target build/mutation-packages -r requirements/mutation.txt
	@touch $@

SEED ?= 1
MODULES ?=
mutation: build/mutation-packages/.installed ## Test core/ and planner/ by mutation (MODULES="neuron_dra.core.slices*": some); takes hours
	@mkdir -p mutants && ln -sfn ../$(VENV) mutants/.venv # its programs are started by tests
	@PYTHONPATH=$(CURDIR)/build/mutation-packages $(BIN)/python -m mutmut run $(MODULES)
	@$(BIN)/python -m hack.reports.mutation

crash: setup ## Kill plugin and controller at every point, cut the power at every moment, write docs/reports/crash.md
	@$(BIN)/python -m hack.chaos.crash --report

ONLY ?=
night: setup | build ## Run all other suites, which takes hours (ONLY="seeds bed-1.36": some), and write docs/reports/night.md
	@$(BIN)/python -m hack.reports.night $(ONLY) --report

MINUTES ?= 10
chaos: setup ## Inject faults on the test bed (SEED="1 2 3" MINUTES=10), write docs/reports/chaos.md
	@$(BIN)/python -m hack.chaos.run $(foreach seed,$(SEED),--seed $(seed)) --minutes $(MINUTES) --report

docs: setup ## Write the reference pages of docs/ from the code
	@$(BIN)/python -m hack.generate.docs

build/site-venv/.installed: requirements/site.txt | build
	@$(PYTHON) -m venv build/site-venv
	@build/site-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/site.txt
	@touch $@

site: setup build/site-venv/.installed ## Build the documentation site in build/site; a dead link fails
	@$(BIN)/python -m hack.site.pages
	@NO_MKDOCS_2_WARNING=1 build/site-venv/bin/mkdocs --quiet build --strict
	@$(BIN)/python -m hack.site.check

contract: setup ## Write docs/contract.md from the results of the last `make test` and `make night`
	@$(BIN)/python -m hack.reports.contract

golden: setup ## Write the golden files again; read the difference
	@$(BIN)/python -m hack.generate.golden

wheels: setup ## Build the locked wheels that the images install; IMAGE_PYTHON=3.11 for another base
	@$(BIN)/python -m hack.release.wheels $(if $(IMAGE_PYTHON),--python $(IMAGE_PYTHON)) $(if $(IMAGE_MACHINE),--machine $(IMAGE_MACHINE))

BASE_IMAGE ?= docker.io/library/python:3.13-slim
BASE ?= build/release-base.tar
build/release-base.tar: | build
	@echo "== fetching $(BASE_IMAGE) for all machine types, kept until make clean"
	@skopeo copy --quiet --all docker://$(BASE_IMAGE) oci-archive:$@.part
	@mv $@.part $@

build/debian-base.tar: hack/release/debian_base.py | setup build
	@$(BIN)/python -m hack.release.debian_base $@

COMPILE := pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 pyproject.toml
UV ?= uv
lock: ## Lock the dependencies of pyproject.toml in requirements/, keeping versions that still fit (needs uv)
	@$(UV) $(COMPILE) -o requirements/plugin.txt
	@$(UV) $(COMPILE) --all-extras --group dev -o requirements/dev.txt
	@$(UV) $(COMPILE) --all-extras --resolution lowest-direct -o requirements/oldest.txt
	@$(UV) $(COMPILE:pyproject.toml=) --group gen -o requirements/gen.txt
	@$(UV) $(COMPILE:pyproject.toml=) --group site -o requirements/site.txt

releasable: ## Fail while something is missing without which no release may be public
	@! grep -n "@example.com" SECURITY.md || { echo "releasable: SECURITY.md has a placeholder: name a contact for reports" >&2; exit 1; }

VERSION ?=
release: setup | build ## Build images, chart, SBOMs and checksums of a release in build/release (VERSION=1.2.3)
	@$(BIN)/python -m hack.release.build --version "$(VERSION)" --check
	@test -e $(BASE) || $(MAKE) --no-print-directory $(BASE)
	@$(BIN)/python -m hack.release.build --version "$(VERSION)" --base $(BASE)

REGISTRY ?=
PUSH ?= skopeo copy --quiet --all
RELEASED := neuron-dra-driver neuron-ultraserver-controller neuron-dra-chart
build/published: | build
	@mkdir -p $@

# Helm expects the chart neuron-dra at REGISTRY/neuron-dra; its archive has another name.
publish: | build/published ## Push the release in build/release to a registry (VERSION=1.2.3 REGISTRY=...), with skopeo
	@test -n "$(REGISTRY)" || { echo "publish: set REGISTRY to a registry to which you are logged in" >&2; exit 1; }
	@test -e build/release/neuron-dra-$(VERSION).tgz || { echo "publish: build/release has no version \"$(VERSION)\": make release VERSION=$(VERSION)" >&2; exit 1; }
	@(cd build/release && sha256sum --quiet -c SHA256SUMS) || { echo "publish: build/release is damaged: make release VERSION=$(VERSION)" >&2; exit 1; }
	@rm -f build/published/*
	@for name in $(RELEASED); do \
	  image=$(REGISTRY)/$${name%-chart}:$(VERSION); \
	  $(PUSH) --digestfile build/published/$$name oci-archive:build/release/$$name-$(VERSION).oci.tar docker://$$image || { \
	    echo "publish: $$image was not pushed: install skopeo, and log in with: skopeo login $(firstword $(subst /, ,$(REGISTRY)))." \
	      "Then publish again" >&2; exit 1; }; \
	  echo "$$image@$$(cat build/published/$$name)"; \
	done

SIGN ?= cosign sign --yes
sign: ## Sign what `make publish` has pushed (REGISTRY=...), with cosign and without a key; SIGN is the command
	@test -n "$(REGISTRY)" || { echo "sign: set REGISTRY to the registry of make publish" >&2; exit 1; }
	@for name in $(RELEASED); do test -s build/published/$$name || { \
	  echo "sign: $${name%-chart} was not published from this folder: make publish VERSION=... REGISTRY=$(REGISTRY)" >&2; exit 1; }; \
	done
	@for name in $(RELEASED); do \
	  image=$(REGISTRY)/$${name%-chart}@$$(cat build/published/$$name); \
	  $(SIGN) $$image || { \
	    echo "sign: $$image was not signed: install cosign 3, and log in with: cosign login $(firstword $(subst /, ,$(REGISTRY)))." \
	      "Then sign again" >&2; exit 1; }; \
	done

manifests: setup ## Copy deploy/crds into the chart and render deploy/manifests (needs helm, or HELM=path)
	@cp deploy/crds/*.yaml deploy/helm/neuron-dra/files/crds/
	@$(BIN)/python -m hack.generate.crd_fields
	@$(BIN)/python -m hack.generate.alerts
	@$(BIN)/python -m hack.generate.render

clean: ## Remove everything built in this folder (the test bed's cache is outside)
	@rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .dmypy.json
