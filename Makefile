# koordlet: `make run` starts it, `make test` tests it; both set up what they need.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
PREFIX ?= /opt/koordlet
# Where manual pages and completions of make install-systemd are looked for by man and the shells.
SHARE  ?= /usr/local/share
IMAGE  ?= koord-descheduler:latest
DOCKER ?= $(shell command -v docker || command -v podman || echo docker)
# Of the images that the Containerfile builds on: docs/operations.md, "Building the images".
DIGESTS = $(foreach base,DEBIAN DISTROLESS,$(if $($(base)_DIGEST),--build-arg $(base)_DIGEST=$($(base)_DIGEST)))
# Processes of `make test`, which wait for half of their time.
WORKERS ?= $(shell expr $$(nproc) + 1)

# Where the files of `make test` are, if there is room in memory: on a disk each change of the journal
# waits for it.
MEMORY = $(shell [ -w /dev/shm ] && [ "$$(df --output=avail /dev/shm | tail -n 1)" -gt 1000000 ] && \
	! findmnt -no OPTIONS /dev/shm | grep -q noexec && echo /dev/shm)

# The cluster on this machine, which helpers of the tests start.
CLUSTER = $(BIN)/python -m tests.support.real_cluster.make_cluster

# Compiled, and assertions rewritten, once: not by each process of the tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help run run-descheduler run-manager run-scheduler demo test e2e-test image-test cluster cluster-test cluster-soak lint format docs site dashboards bench bench-descheduler bench-smoke soak vm-test lock \
	build-koord-descheduler docker-build-koord-descheduler docker-build-koord-manager docker-build-koord-scheduler install-systemd clean

help:  ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-31s %s\n", $$1, $$2}'

$(BIN)/.run: requirements/run.txt requirements/build.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/build.txt -r requirements/run.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(BIN)/.descheduler: requirements/descheduler.txt $(BIN)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/descheduler.txt
	@touch $@

$(BIN)/.manager: requirements/manager.txt $(BIN)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/manager.txt
	@touch $@

$(BIN)/.dev: requirements/dev.txt $(BIN)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	PYTHONPATH=docs $(BIN)/python -P -m commandlines
	@touch $@

$(BIN)/.docs: requirements/docs.txt $(BIN)/.descheduler
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

run: $(BIN)/.run  ## Start the daemon on this host (more flags: make run ARGS="--feature-gates=PressureWatch=true")
	exec $(BIN)/koordlet --standalone $(ARGS)

run-descheduler: $(BIN)/.descheduler  ## Start koord-descheduler in dry-run (KUBECONFIG=...; other flags: ARGS="--config=FILE")
	exec $(BIN)/koord-descheduler $(or $(ARGS),--config=docs/examples/descheduler.yaml)

run-scheduler: $(BIN)/.descheduler  ## Start koord-scheduler (KUBECONFIG=... or ARGS="--kubeconfig=FILE")
	exec $(BIN)/koord-scheduler --config=docs/examples/scheduler.yaml $(ARGS)

run-manager: $(BIN)/.manager  ## Start koord-manager in dry-run (KUBECONFIG=...; other flags: ARGS="--config=FILE")
	exec $(BIN)/koord-manager $(or $(ARGS),--config=docs/examples/manager.yaml)

test: $(BIN)/.dev  ## Unit, fake host and, as root on cgroup v1, real cgroup tests
	$(if $(MEMORY),TMPDIR=$${TMPDIR:-$(MEMORY)}) $(BIN)/pytest -n $(WORKERS) $(ARGS)

e2e-test: $(BIN)/.dev  ## Against etcd and a real kube-apiserver (Go, etcd-server; builds it first)
	$(BIN)/pytest --timeout=2700 tests/e2e $(ARGS)

image-test: $(BIN)/.dev  ## Build the images without a registry, start them under runc and emulated (root, Go, Debian packages)
	TMPDIR=$${TMPDIR:-/var/tmp} $(BIN)/pytest -s --timeout=2700 tests/image $(ARGS)

cluster: $(BIN)/.dev  ## A real Kubernetes cluster on this machine, until ^C (root, cgroup v1, Go, etcd, runc; NODES=500 IMAGES=yes KUBERNETES=1.30)
	exec $(CLUSTER) --nodes=$(or $(NODES),3) $(if $(IMAGES),--images) $(ARGS)

cluster-test: $(BIN)/.dev  ## The daemons from their images and manifests in such a cluster (also buildah, mmdebstrap; KUBERNETES=1.30)
	$(CLUSTER) --images -- $(abspath $(BIN))/pytest --timeout=900 tests/cluster $(ARGS)

cluster-soak: $(BIN)/.dev  ## Kill -9 at random in such a cluster, checked from outside (SECONDS=600 SEED=1)
	$(CLUSTER) --images --nodes=$(or $(NODES),8) -- $(abspath $(BIN))/python \
		-m tests.support.real_cluster.soak --seconds=$(or $(SECONDS),600) $(if $(SEED),--seed=$(SEED)) $(ARGS)

lint: $(BIN)/.dev  ## Style, types, import contract, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy plugins/example/src plugins/example-descheduler/src plugins/example-manager/src \
		plugins/example-scheduler/src tests/koordlet/metriccache/typed_queries.py
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

format: $(BIN)/.dev  ## Let ruff format the tree
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(BIN)/.dev  ## Write what is made from the code: references in docs/, alerts and dashboards in deploy/
	$(BIN)/python docs/generate.py
	PYTHONPATH=docs $(BIN)/python -P -m commandlines

site: $(BIN)/.docs  ## Build the documentation site in build/site/html; a dead link or anchor fails
	$(BIN)/sphinx-build -W --keep-going -q -j auto -c docs/site -d build/site/doctrees . build/site/html

dashboards: docs  ## Write Grafana's dashboards and show where they are
	@ls deploy/dashboards/*.json

bench: $(BIN)/.dev  ## Measure cost per tick, memory, scrape, report and loop lag (root, cgroup v1)
	$(BIN)/python -m benchmarks $(ARGS)

demo: $(BIN)/.dev  ## Show the loop on eight nodes in memory: hot nodes, moves, placement (Go; a minute)
	$(BIN)/python -m benchmarks.demo $(ARGS)

bench-descheduler: $(BIN)/.dev  ## Measure rounds of koord-descheduler among 1,000 and 5,000 nodes (Go)
	$(BIN)/python -m benchmarks descheduler $(ARGS)

soak: $(BIN)/.dev  ## Schedule among random faults, checked from outside (more: SEEDS=0:2000)
	KOORD_SOAK_SEEDS=$(or $(SEEDS),0:200) $(BIN)/pytest -n $(WORKERS) tests/koord_scheduler/scheduling/test_soak.py $(ARGS)

bench-smoke: $(BIN)/.dev  ## The same, short: does every benchmark still run?
	$(BIN)/python -m benchmarks --smoke $(ARGS)

vm-test: $(BIN)/.dev  ## The cgroup v2 suite in a virtual machine (software emulation; Debian packages, see script)
	tests/vm/run.sh $(ARGS)

lock:  ## Renew the hash-locked dependency lists (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --upgrade \
		pyproject.toml -o requirements/run.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --upgrade \
		pyproject.toml --extra descheduler -o requirements/descheduler.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --upgrade \
		pyproject.toml --extra manager -o requirements/manager.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --upgrade \
		pyproject.toml --extra nvml --extra podresources -o requirements/devices.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --upgrade \
		pyproject.toml --extra descheduler --extra manager --group dev -o requirements/dev.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --upgrade \
		-c requirements/dev.txt pyproject.toml --extra descheduler --extra docs -o requirements/docs.txt
	printf 'setuptools>=77\nshtab>=1.13\n' | uv pip compile --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --quiet --upgrade - -o requirements/build.txt
	echo 'cyclonedx-bom>=7' | uv pip compile --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --quiet --upgrade - -o requirements/sbom.txt
	echo 'virtme-ng>=1.30' | uv pip compile --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --quiet --upgrade - -o requirements/vm.txt

build-koord-descheduler:  ## The command with all it needs in build/koord-descheduler/bin
	$(PYTHON) -m venv build/koord-descheduler
	build/koord-descheduler/bin/pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/build.txt -r requirements/descheduler.txt
	build/koord-descheduler/bin/pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation .
	PYTHONPATH=docs build/koord-descheduler/bin/python -P -m commandlines

docker-build-koord-descheduler:  ## Its image (docker or podman; IMAGE=name:tag DEBIAN_DIGEST=... DISTROLESS_DIGEST=...)
	$(DOCKER) build --target koord-descheduler -t $(IMAGE) $(DIGESTS) -f deploy/Containerfile .

docker-build-koord-manager:  ## The image of koord-manager (IMAGE=name:tag)
	$(DOCKER) build --target koord-manager -t $(IMAGE:koord-descheduler%=koord-manager%) \
		$(DIGESTS) -f deploy/Containerfile .

docker-build-koord-scheduler:  ## The image of koord-scheduler (IMAGE=name:tag)
	$(DOCKER) build --target koord-scheduler -t $(IMAGE:koord-descheduler%=koord-scheduler%) \
		$(DIGESTS) -f deploy/Containerfile .

install-systemd:  ## Install into $(PREFIX) and enable koordlet.service (root)
	$(PYTHON) -m venv $(PREFIX)
	$(PREFIX)/bin/pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/build.txt -r requirements/run.txt
	$(PREFIX)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation .
	@[ -e $(DESTDIR)/etc/koordlet/koordlet.yaml ] || \
		install -D -m 0644 systemd/koordlet.yaml $(DESTDIR)/etc/koordlet/koordlet.yaml
	sed 's#/opt/koordlet#$(PREFIX)#' systemd/koordlet.service | \
		install -D -m 0644 /dev/stdin $(DESTDIR)/etc/systemd/system/koordlet.service
	@for page in docs/man/*; do \
		install -D -m 0644 -t $(DESTDIR)$(SHARE)/man/man$${page##*.} $$page; \
	done
	@# -P: it is the installed package, not this checkout's, that gets the completions
	PYTHONPATH=docs $(PREFIX)/bin/python -P -m commandlines --share=$(DESTDIR)$(SHARE)
	@if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then \
		systemctl daemon-reload && systemctl enable --now koordlet.service; \
	else echo "installed; start it with: systemctl daemon-reload && systemctl enable --now koordlet"; fi

clean:  ## Remove what the targets above made
	rm -rf $(VENV) build dist .vm .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
