# Everything a contributor runs. `make help` lists it.
GO ?= go
PYTHON ?= python3
BIN := $(CURDIR)/bin
VENV := $(CURDIR)/.venv
OFFLINE = echo "packages of rpc/python/requirements-dev.txt are missing and the package registry was not reached"; exit 1

# Pinned tools, installed below bin/.
BUF_VERSION := v1.75.0
PROTOC_GEN_GO_VERSION := v1.36.12
PROTOC_GEN_CONNECT_VERSION := v1.21.1
GOLANGCI_VERSION := v2.15.0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)

# Bounds of the long runs; override on the command line.
FUZZTIME ?= 30s
BENCHTIME ?= 2s
EPISODES ?= 200
DURATION ?= 600
SEED ?=

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build ## Run one node, a simulated SGLang fleet and 200 agents, and compare admission off and on
	$(BIN)/kvgate demo $(ARGS)

.PHONY: cluster
cluster: build $(BIN)/enginesim ## Run three nodes and a simulated fleet on this machine until Ctrl-C
	deploy/cluster.sh

.PHONY: build
build: ## Build bin/kvgate
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/kvgate ./cmd/kvgate

.PHONY: test
test: test-python $(BIN)/promtool $(BIN)/deploytools ## Run every test; needs Python 3, Chromium, and the package registries for the real routers
	$(GO) vet ./...
	$(GO) test -timeout 20m ./...

.PHONY: test-python
test-python: build $(BIN)/enginesim $(VENV)/tools ## Check and test the Python client, as the wheel that it builds
	cd rpc/python && $(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check -q . && $(VENV)/bin/mypy
	rm -rf $(VENV)/dist && cd rpc/python && $(VENV)/bin/python -m build -q --wheel --no-isolation --outdir $(VENV)/dist
	rm -rf $(VENV)/wheel && $(PYTHON) -m venv $(VENV)/wheel
	$(VENV)/wheel/bin/pip install -q $(VENV)/dist/*.whl || { $(OFFLINE); }
	$(VENV)/wheel/bin/python -c 'import kvgate; print("the wheel works in an empty environment:", kvgate.__file__)'
	$(VENV)/wheel/bin/pip install -q -r rpc/python/requirements-dev.txt || { $(OFFLINE); }
	cd rpc/python && timeout 600 $(VENV)/wheel/bin/python -m pytest $(ARGS)

# What builds, checks and tests the Python client, at the versions that its requirements pin.
$(VENV)/tools: rpc/python/requirements-dev.txt
	$(PYTHON) -m venv $(VENV) || { echo "python3 with venv is missing: on Debian, apt-get install python3-venv"; exit 1; }
	$(VENV)/bin/pip install -q -r rpc/python/requirements-dev.txt || { $(OFFLINE); }
	@touch $@

.PHONY: $(BIN)/enginesim
$(BIN)/enginesim:
	$(GO) build -o $@ ./integration/enginesim/cmd/enginesim

# What reads the files of deploy/ in tests, at the versions of a module of its own: Prometheus's promtool without its
# service discoveries, and one program for the rest. The first build takes about two minutes.
TOOLS := integration/deploy/tools
$(BIN)/promtool: $(TOOLS)/go.mod
	cd $(TOOLS) && $(GO) build -tags remove_all_sd -o $@ github.com/prometheus/prometheus/cmd/promtool
$(BIN)/deploytools: $(TOOLS)/go.mod $(wildcard $(TOOLS)/*.go)
	cd $(TOOLS) && $(GO) build -o $@ .

.PHONY: test-short
test-short: ## Run the tests of the packages, without processes and real routers
	$(GO) test $$($(GO) list ./... | grep -v /integration)

.PHONY: test-race
test-race: ## Run the packages' tests under the race detector
	$(GO) test -race -timeout 20m $$($(GO) list ./... | grep -v /integration)

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME each
	@set -e; for f in $$(grep -rlE '^func Fuzz' --include=*_test.go . | xargs -n1 dirname | sort -u); do \
	  for t in $$(grep -hoE '^func Fuzz[A-Za-z0-9]+' $$f/*_test.go | cut -d' ' -f2); do \
	    echo "== $$f $$t"; $(GO) test -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME) $$f; done; done

.PHONY: bench
bench: build $(BIN)/enginesim $(VENV)/tools ## Run the benchmarks and print rates and ratios
	$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) -benchmem ./ledger ./store ./fsm ./scrape ./rpc
	$(GO) test -run '^$$' -bench . -benchtime 1x -timeout 30m ./integration/bench ./integration/sessions
	cd rpc/python && PYTHONPATH=src timeout 300 $(VENV)/bin/python tests/bench.py

.PHONY: chaos
chaos: ## Run EPISODES random fault episodes on three nodes, for at most DURATION seconds; SEED repeats
	KVGATE_CHAOS_EPISODES=$(EPISODES) KVGATE_CHAOS_DURATION=$(DURATION) $(if $(SEED),KVGATE_CHAOS_SEED=$(SEED)) \
	  $(GO) test -count=1 -timeout 0 -v -run '^TestChaos$$' ./integration/cluster

.PHONY: gen
gen: $(BIN)/buf $(BIN)/protoc-gen-go $(BIN)/protoc-gen-connect-go gen-python ## Generate code from the protos
	PATH=$(BIN):$$PATH $(BIN)/buf lint
	PATH=$(BIN):$$PATH $(BIN)/buf generate

.PHONY: gen-python
gen-python: $(VENV)/tools ## Generate the messages of the Python client
	$(VENV)/bin/python rpc/python/tools/generate.py rpc rpc/python/src

.PHONY: gen-check
gen-check: gen ## Prove that the committed generated code is current
	@git diff --exit-code --stat -- rpc/kvgate fsm/fsmpb rpc/python/src/kvgate/v1 || { echo "generated code is not current: run make gen and commit"; exit 1; }
	@echo "generated code is current"

.PHONY: lint
lint: $(BIN)/golangci-lint ## Run the linters with the reasons in .golangci.yml
	$(BIN)/golangci-lint run ./...

.PHONY: release
release: ## Build static binaries for linux amd64 and arm64 below bin/
	for arch in amd64 arm64; do \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -trimpath -ldflags '-s -w $(LDFLAGS)' -o $(BIN)/kvgate-linux-$$arch ./cmd/kvgate; done

.PHONY: clean
clean: ## Remove what the targets made
	rm -rf $(BIN) $(VENV)

$(BIN)/buf:
	GOBIN=$(BIN) $(GO) install github.com/bufbuild/buf/cmd/buf@$(BUF_VERSION)
$(BIN)/protoc-gen-go:
	GOBIN=$(BIN) $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@$(PROTOC_GEN_GO_VERSION)
$(BIN)/protoc-gen-connect-go:
	GOBIN=$(BIN) $(GO) install connectrpc.com/connect/cmd/protoc-gen-connect-go@$(PROTOC_GEN_CONNECT_VERSION)
$(BIN)/golangci-lint:
	GOBIN=$(BIN) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
