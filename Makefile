# `make up` and `make test` work from a bare checkout: Python 3.11, gcc, cargo and the package registries are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
RUST := $(shell find kernels/core -name '*.rs' -not -path '*/target/*') kernels/core/Cargo.toml kernels/core/Cargo.lock
PORT ?= 8000
AGENT_PORT ?= 8100
AGENTS ?= 2
# More flags of `trunkline up`.
ARGS ?=
MINUTES ?= 30

.PHONY: setup up test test-k8s redis prometheus chromium lint monitoring helm chart bench bench-compare soak lock clean
setup: $(VENV)/.ready

$(VENV)/.uv:
	@echo "==> creating $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(VENV)/.packages: $(VENV)/.uv requirements/dev.txt
	@echo "==> installing locked packages (torch is large: about a minute the first time, a second afterwards)"
	VIRTUAL_ENV=$(VENV) $(UV) pip install --require-hashes -r requirements/dev.txt
	@touch $@

# `trunkline` is an editable install; .venv/src/trunkline -> . is the same package for the type checker.
$(VENV)/.ready: $(VENV)/.packages pyproject.toml $(RUST)
	@echo "==> building the Rust core"
	VIRTUAL_ENV=$(VENV) SETUPTOOLS_RUST_CARGO_PROFILE=release $(UV) pip install --no-deps --no-build-isolation -e .
	@mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/trunkline
	@touch $@

up: setup
	$(BIN)/trunkline up --agents $(AGENTS) --port $(PORT) --agent-port $(AGENT_PORT) $(ARGS)

# Tests run a real Redis, a real Prometheus and a real browser. A machine without one fails here: nothing is skipped.
# $(call debian,PROGRAM,PACKAGE)
define debian
	@command -v $(1) >/dev/null || sh -c '\
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || \
	    { echo "the tests need $(1): as root, apt-get install $(2)" >&2; exit 1; }; \
	  echo "==> installing $(2)"; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends $(2) >/dev/null'
endef
redis:
	$(call debian,redis-server,redis-server)

prometheus:
	$(call debian,promtool,prometheus)

chromium:
	$(call debian,chromium,chromium fonts-dejavu-core)

test: setup redis prometheus chromium
	cargo test --quiet --manifest-path kernels/core/Cargo.toml --no-default-features --locked
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(VENV)/src:helm $(BIN)/mypy -p trunkline.shared -p trunkline.router -p trunkline.agent -p trunkline.kernels -p trunkline.loadtest -p monitoring
	cargo fmt --check --manifest-path kernels/core/Cargo.toml
	cargo clippy --quiet --manifest-path kernels/core/Cargo.toml --locked --all-targets -- -D warnings

# What follows from shared/metrics/: the page about metrics, and the dashboards.
monitoring: setup
	cd helm && $(abspath $(BIN))/python -m monitoring

# About twelve minutes; peers that are not installed are left out, and named.
bench-compare: setup
	$(BIN)/python -m trunkline.loadtest.compare --out bench-compare-$$(date +%Y%m%d-%H%M%S)

# Load while agents, router, events and disks fail; every answer and every invariant is checked.
soak: setup
	$(BIN)/python -m trunkline.loadtest.soak --minutes $(MINUTES) --out soak-$$(date +%Y%m%d-%H%M%S)

# The chart: rendered, and refused where it should be. Helm comes with Go's own client where it is not installed.
HELM_VERSION := v4.3.2
HELM := $(or $(shell command -v helm),$(VENV)/go/helm)
$(VENV)/go/helm: | setup
	@echo "==> building helm $(HELM_VERSION)"
	GOBIN=$(abspath $(VENV)/go) GOFLAGS=-modcacherw go install helm.sh/helm/v4/cmd/helm@$(HELM_VERSION)

helm: $(HELM)

# What the example for KubeRay is checked against: a Go module, of which nothing is shipped.
KUBERAY := github.com/ray-project/kuberay/ray-operator@v1.5.0
chart: setup helm
	$(HELM) lint --strict helm/trunkline
	go mod download $(KUBERAY)
	HELM=$(abspath $(HELM)) KUBERAY_CRD=$$(go env GOMODCACHE)/$(KUBERAY)/config/crd/bases/ray.io_rayclusters.yaml \
	  $(BIN)/python -m pytest -q tests/helm

# The chart on a real Kubernetes of one node, with images of this checkout: as root, about a quarter of an hour. K8S is a
# folder of scripts that build, start and stop one; building it takes ten minutes, once.
K8S ?= ../shared/k8s
test-k8s: setup
	@[ -x $(K8S)/up.sh ] && [ "$$(id -u)" = 0 ] || \
	  { echo "no Kubernetes can be started here: that takes root, and its scripts in K8S=$(K8S)" >&2; exit 2; }
	$(K8S)/build.sh >/dev/null
	TRUNKLINE_K8S=$(abspath $(K8S)) $(BIN)/python -m pytest tests/k8s -n 0 -s --durations=0

bench: setup
	$(BIN)/trunkline bench core
	$(BIN)/trunkline bench scheduler
	$(BIN)/trunkline bench engine
	$(BIN)/trunkline bench router
	$(BIN)/trunkline bench cache
	$(BIN)/trunkline bench eviction

# uv.in pins uv itself and what builds the package; the rest comes from pyproject.toml.
COMPILE = VIRTUAL_ENV=$(VENV) $(UV) pip compile --quiet --generate-hashes --no-emit-index-url --python-version 3.11 --custom-compile-command "make lock"
lock: $(VENV)/.uv
	$(COMPILE) requirements/uv.in -o requirements/uv.txt
	$(COMPILE) requirements/uv.in requirements/build.in -c requirements/dev.txt -o requirements/build.txt
	$(COMPILE) pyproject.toml --extra otel -o requirements/router.txt
	$(COMPILE) pyproject.toml --extra agent --extra otel -c requirements/dev.txt -o requirements/agent.txt
	$(COMPILE) pyproject.toml requirements/build.in --extra agent --extra dev -o requirements/dev.txt
	$(COMPILE) pyproject.toml --extra agent --extra nixl -c requirements/dev.txt -o requirements/nixl.txt

clean:
	rm -rf $(VENV) build kernels/core/target kernels/core/*.so *.egg-info
