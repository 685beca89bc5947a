# Every target makes .venv and installs what it needs; the stamp file makes a second run quick.
#   make demo   four ranks train a model on real images
#   make test   lint, types, tests
#   make matrix  every fault in every phase over every transport (make test tries a part of them)
#   make PYTHON=/path/to/python3.12 ...   to choose the interpreter of a new .venv

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format generated types imported pytest test-extended matrix soak soak-service fuzz test-slurm test-gpu test-gpu-emulated test-torch-versions check-torch-versions test-pytorch test-install test-ecosystem bench bench-mpi bench-network bench-hosts recipes docs docs-install test-docs test-benchmarks test-examples clean distclean test-engines test-hosts
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
# Tests and launchers start hundreds of processes: none of them compiles what another one has.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?=
PYTEST_ARGS ?=

help:
	@echo "make demo       four ranks train a model on real images"
	@echo "make test       lint, types, tests"
	@echo "make test-extended  further cases of what make test tries: more seeds, ranks and transports"
	@echo "make lint       ruff check, ruff format --check"
	@echo "make matrix     every fault in every phase over every transport"
	@echo "make soak       eight ranks at work for five minutes: nothing may grow"
	@echo "make soak-service  the inference service for ten minutes under load, with a kill every 20 s"
	@echo "make fuzz       coverage-guided fuzzing of all that reads a stranger's bytes"
	@echo "make format     let ruff mend what it can"
	@echo "make generated  write the blocking API and the methods of a group from aiodist/api"
	@echo "make test-slurm jobs of a real Slurm on two hosts of network namespaces (root; installs slurm-wlm and munge)"
	@echo "make test-hosts ranks on hosts of network namespaces, started over a real sshd (root; installs openssh-server, iproute2)"
	@echo "make test-engines   ranks under a real Ray and a real Dask, and the manifests for Kubernetes"
	@echo "make test-gpu   the tests that need a GPU, with the python3 of this machine as it is"
	@echo "make test-gpu-emulated   the same without one, on emulated devices (installs torch for CUDA: gigabytes)"
	@echo "make test-torch-versions   the torch backend's tests on several versions of torch (gigabytes)"
	@echo "make check-torch-versions  whether a newer torch has appeared than those"
	@echo "make test-pytorch CHECKOUT=...  PyTorch's own tests, out of a checkout of v2.6.0, beside Gloo (gigabytes; hours)"
	@echo "make test-install   an environment of pip install aiodist alone, with the torch it brings, trains by DDP (gigabytes)"
	@echo "make test-ecosystem  programs of other packages over aiodist: Accelerate, Trainer, Lightning, torchmetrics, Ignite, Ray Train, Dask, torchft"
	@echo "make bench      compare with Gloo on this machine (bench-mpi: with MPI; bench-network: between two hosts; bench-hosts: between four)"
	@echo "make test-benchmarks  whole runs of the benchmarks, besides the few in make test"
	@echo "make test-examples   whole recipes, notebooks and applications, MPI on all ranks, all of torch's own tests"
	@echo "make recipes    run every training recipe with 1, 2 and 4 ranks and write docs/recipes.md"
	@echo "make docs       build the documentation into build/docs"
	@echo "make test-docs  open its pages in a headless browser, follow the links, run the search (needs Chromium)"
	@echo "make clean      remove caches and build outputs (make distclean: .venv and .venv-emulated as well)"

# A name on PATH may be a shim with no interpreter behind it, so each candidate is run.
define find_python
for candidate in $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3.13 python3.14 python3.15 python3); do \
	if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
		>/dev/null 2>&1; then python=$$candidate; break; fi; \
done
endef

# pip would compile 12,000 files, most of which are never imported; torch alone is for ranks that start
# at the same moment.
PIP_INSTALL := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check \
	-c constraints.txt
# A hundred packages in five seconds, which take pip three quarters of a minute. uv reads none of pip's
# configuration, so pip installs torch, whose builds lie in many places, and all where it was told of an
# index to use in place of the public one, or where uv reaches none.
OWN_INDEX := $(BIN)/python -m pip config list | grep -qE '[.](index-url|no-index)='
UV_INSTALL := $(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c 'import pip' >/dev/null 2>&1; then \
		python=; $(find_python); \
		if [ -z "$$python" ]; then \
			echo "aiodist needs Python 3.11 or newer with the venv module, and none was found" \
				"(looked for: $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3.13 python3.14 python3.15 python3))." >&2; \
			echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; \
			exit 1; \
		fi; \
		echo "== install: making $(VENV) with $$($$python --version)"; \
		"$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "== install: torch (the largest download)"
	@$(PIP_INSTALL) torch
	@echo "== install: aiodist and its tools"
	@{ ! $(OWN_INDEX) && $(PIP_INSTALL) uv && $(UV_INSTALL) -e '.[dev,examples,bench]'; } \
		|| { echo "== install: not by uv, pip does it"; $(PIP_INSTALL) -e '.[dev,examples,bench]'; }
	@$(BIN)/python -c 'import torch'
	@touch $@

install: $(STAMP)

# One thread a rank, said here so that the launcher need not say that it chose so.
demo: $(STAMP)
	@echo "== demo: aiodist run -n 4 examples/train.py"
	@OMP_NUM_THREADS=1 $(BIN)/aiodist run -n 4 examples/train.py

# One after the other, whatever -j says: the last line is pytest's own. mypy leaves a core free, on
# which the tests are imported once before several processes import them at the same moment.
test: $(STAMP)
	@$(MAKE) lint
	@$(MAKE) imported & $(MAKE) types; status=$$?; wait; exit $$status
	@$(MAKE) pytest

lint: $(STAMP)
	@echo "== lint: ruff check, ruff format --check"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

generated: $(STAMP)
	@$(BIN)/python -m tests.sync.generate

types: $(STAMP)
	@echo "== types: mypy --strict"
	@$(BIN)/mypy --strict

# Silent: what cannot be imported, pytest says.
imported: $(STAMP)
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true

# Most tests wait for processes, so three at a time suit two cores; their limits then take double.
pytest: $(STAMP)
	@echo "== tests: pytest"
	@AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
		$(BIN)/python -m pytest -n 3 --dist worksteal $(PYTEST_ARGS)

test-extended: $(STAMP)
	@echo "== tests: further cases of what make test tries"
	@AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
		$(BIN)/python -m pytest -n 3 --dist worksteal -m extended $(PYTEST_ARGS)

matrix: $(STAMP)
	@echo "== the whole fault matrix: ten minutes or more"
	@AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
		AIODIST_FAULT_REPORT=docs/reliability/matrix.json \
		$(BIN)/python -m pytest -q -m 'matrix or not matrix' tests/faults/test_matrix.py
	@$(BIN)/python -m tests.faults.report

soak: $(STAMP)
	@echo "== the soak: eight ranks for five minutes"
	@AIODIST_SOAK_REPORT=docs/reliability/soak.json \
		$(BIN)/python -m pytest -q -m soak tests/faults/test_soak.py
	@$(BIN)/python -m tests.faults.report

soak-service: $(STAMP)
	@echo "== the soak of a service: ten minutes under load, with a kill every 20 s"
	@AIODIST_SERVICE_SOAK_REPORT=docs/reliability/service-soak.json \
		$(BIN)/python -m pytest -q -m soak tests/examples/apps/test_soak.py
	@$(BIN)/python -m tests.faults.report

fuzz: $(STAMP)
	@$(PIP_INSTALL) -e '.[fuzz]'
	@echo "== fuzz: the tests of random examples, with others than in make test"
	@$(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile explore
	@$(BIN)/python -m tests.fuzz

# Root starts the daemons. Where a program is missing and apt-get is not there either, pytest says what it skips.
SLURM_PROGRAMS := munged slurmctld slurmd srun ip
test-slurm: $(STAMP)
	@if [ "$$(id -u)" = 0 ] && ! PATH=$$PATH:/usr/sbin:/sbin which $(SLURM_PROGRAMS) >/dev/null && which apt-get >/dev/null; then \
		echo "== install: slurm-wlm, munge and iproute2"; \
		apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			slurm-wlm munge iproute2 >/dev/null; \
	fi
	@echo "== tests: jobs of a real Slurm"
	@AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
		$(BIN)/python -m pytest -m slurm tests/slurm $(PYTEST_ARGS)

test-benchmarks: $(STAMP)
	@echo "== tests: whole runs of the benchmarks"
	@AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
		$(BIN)/python -m pytest -m benchmarks tests/benchmarks $(PYTEST_ARGS)

test-examples: $(STAMP)
	@echo "== tests: whole recipes, notebooks and applications, MPI on all ranks, all of torch's own tests"
	@AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
		$(BIN)/python -m pytest -n 2 --dist worksteal -m examples tests/examples tests/backends/mpi \
		tests/torch_backend $(PYTEST_ARGS)

# Root makes namespaces and starts the servers.
HOSTS_PROGRAMS := sshd ssh ip tc
test-hosts: $(STAMP)
	@if ! PATH=$$PATH:/usr/sbin:/sbin which $(HOSTS_PROGRAMS) >/dev/null && which apt-get >/dev/null; then \
		echo "== install: openssh-server, openssh-client and iproute2"; \
		apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			openssh-server openssh-client iproute2 >/dev/null; \
	fi
	@echo "== tests: hosts of network namespaces"
	@AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
		$(BIN)/python -m pytest -m hosts tests/hosts $(PYTEST_ARGS)

# An environment of its own, with the engines.
ENGINES := .venv-engines

$(ENGINES)/.installed: pyproject.toml constraints.txt tests/engines/requirements.txt
	@python=; $(find_python); "$$python" -m venv --clear $(ENGINES)
	@echo "== install: the engines of tests/engines/requirements.txt"
	@$(ENGINES)/bin/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt \
		torch -r tests/engines/requirements.txt $(BACKEND_TESTS_NEED) -e .
	@touch $@

test-engines: $(ENGINES)/.installed
	@echo "== tests: ranks under Ray, Dask and Kubernetes' manifests"
	@AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
		$(ENGINES)/bin/python -m pytest -q -m engines tests/engines $(PYTEST_ARGS)

# Nothing is installed: GPU machines may have no network. -c because they may lack pytest's plugins.
test-gpu:
	@$(if $(PYTHON),$(PYTHON),python3) -m pytest -c tests/gpu/pytest.ini tests/gpu $(PYTEST_ARGS)

# An environment of its own, whose torch has emulated devices in the place of CUDA's and NCCL's libraries.
EMULATED := .venv-emulated
EMULATED_TESTS := TORCH_CPP_LOG_LEVEL=ERROR $(EMULATED)/bin/python -m pytest -c tests/gpu/pytest.ini $(PYTEST_ARGS)

$(EMULATED)/.installed: pyproject.toml
	@python=; $(find_python); "$$python" -m venv --clear $(EMULATED)
	@echo "== install: torch for CUDA"
	@$(EMULATED)/bin/python -m pip install -qq --no-compile --disable-pip-version-check \
		torch==2.11.0 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 pytest aiohttp pillow psutil tqdm -e .
	@touch $@

test-gpu-emulated: $(EMULATED)/.installed
	@$(EMULATED)/bin/python tests/gpu/emulated/build.py
	@echo "== tests: one emulated GPU"
	@$(EMULATED_TESTS) -k 'not figures' tests/gpu
	@echo "== tests: four emulated GPUs"
	@EMULATED_DEVICES=4 $(EMULATED_TESTS) tests/gpu/test_several_gpus.py

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

# The oldest torch that is supported, two in the middle, and the newest: each in an environment of its
# own, which stays (some gigabytes, as these builds bring CUDA). docs/torch-backend.md has the list too.
TORCH_VERSIONS := 2.6.0 2.9.1 2.13.0 2.15.0
# pytest and the plugins that tests/conftest.py and pyproject.toml name.
BACKEND_TESTS_NEED := pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis trustme expecttest
BACKEND_TESTS := $(addprefix tests/torch_backend/,test_ddp.py test_programs.py test_registration.py) \
	tests/sync/test_beside_torch.py tests/training tests/horovod
TORCH_STAMPS := $(TORCH_VERSIONS:%=.venv-torch-%/.installed)

.venv-torch-%/.installed: pyproject.toml
	@python=; $(find_python); "$$python" -m venv .venv-torch-$*
	@echo "== install: torch $*"
	@.venv-torch-$*/bin/python -m pip install -qq --no-compile --no-cache-dir --disable-pip-version-check \
		torch==$* $(BACKEND_TESTS_NEED) -e .
	@touch $@

test-torch-versions: $(TORCH_STAMPS)
	@status=0; for version in $(TORCH_VERSIONS); do \
		echo "== tests: the torch backend on torch $$version"; \
		AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
			.venv-torch-$$version/bin/python -m pytest -q -n 2 --dist worksteal -m 'compiler or not compiler' \
			$(BACKEND_TESTS) $(PYTEST_ARGS) || status=1; \
	done; exit $$status

# By hand, once a week or so: not part of continuous integration, as it asks the package index.
check-torch-versions: $(STAMP)
	@newest=$$($(BIN)/python -m pip index versions torch 2>/dev/null | sed -n '1s/^torch (\(.*\))$$/\1/p'); \
	if [ -z "$$newest" ]; then echo "the package index names no version of torch" >&2; exit 1; fi; \
	case " $(TORCH_VERSIONS) " in \
		*" $$newest "*) echo "torch $$newest is the newest, and make test-torch-versions tries it";; \
		*) echo "torch $$newest has appeared: add it to TORCH_VERSIONS in the Makefile, run" \
			"make test-torch-versions, and list it in docs/torch-backend.md" >&2; exit 1;; \
	esac

# PyTorch's tests are on no package index: CHECKOUT is a checkout of its repository. Beside torch they
# import the packages that are named here.
PYTORCH_TESTS := 2.6.0
CHECKOUT ?=
test-pytorch:
	@if [ ! -d "$(CHECKOUT)/test/distributed" ]; then \
		echo "say where PyTorch's sources of the tag v$(PYTORCH_TESTS) lie:" \
			"make test-pytorch CHECKOUT=/path/to/pytorch" >&2; exit 1; fi
	@$(MAKE) .venv-torch-$(PYTORCH_TESTS)/.installed
	@.venv-torch-$(PYTORCH_TESTS)/bin/python -m pip install -qq --no-compile --disable-pip-version-check \
		numpy pyyaml parameterized zstandard
	@mkdir -p build
	@.venv-torch-$(PYTORCH_TESTS)/bin/python tests/torch_backend/checkout_suite.py "$(CHECKOUT)" \
		--json build/pytorch-tests.json

# The wheel alone, with whatever torch pip brings: neither constraints.txt nor the repository plays a part.
INSTALLED := .venv-installed
test-install:
	@python=; $(find_python); "$$python" -m venv --clear $(INSTALLED)
	@echo "== install: the wheel of aiodist, and what it asks for"
	@wheel=$$(mktemp -d) && trap 'rm -rf "$$wheel"' EXIT && \
		$(INSTALLED)/bin/python -m pip wheel -qq --no-deps --disable-pip-version-check -w "$$wheel" . && \
		$(INSTALLED)/bin/python -m pip install -qq --no-compile --no-cache-dir --disable-pip-version-check \
			"$$wheel"/aiodist-*.whl && \
		program=$(CURDIR)/tests/install/ddp.py bin=$(CURDIR)/$(INSTALLED)/bin && cd "$$wheel" && \
		echo "== DDP on two ranks: aiodist run" && $$bin/aiodist run -n 2 "$$program" && \
		echo "== DDP on two ranks: torchrun" && $$bin/torchrun --standalone --nproc-per-node 2 "$$program"

# An environment of its own, with the packages whose programs it runs.
ECOSYSTEM := .venv-ecosystem

$(ECOSYSTEM)/.installed: pyproject.toml constraints.txt tests/ecosystem/requirements.txt
	@python=; $(find_python); "$$python" -m venv --clear $(ECOSYSTEM)
	@echo "== install: the packages of tests/ecosystem/requirements.txt"
	@$(ECOSYSTEM)/bin/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt \
		torch -r tests/ecosystem/requirements.txt $(BACKEND_TESTS_NEED) -e .
	@touch $@

test-ecosystem: $(ECOSYSTEM)/.installed
	@echo "== tests: programs of other packages"
	@AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
		$(ECOSYSTEM)/bin/python -m pytest -q -m ecosystem tests/ecosystem $(PYTEST_ARGS)

# Hosts made of network namespaces: the right to administer networks is needed.
bench-network: $(STAMP)
	@$(BIN)/python -m benchmarks run --namespaces --ranks 2 --passes 3 \
		--output docs/performance-network/results.json
	@$(BIN)/python -m benchmarks page docs/performance-network/results.json

# Few sizes, since eight ranks share the cores of one machine. Each rank keeps to its share of them, so that
# ranks know that they share them with others: a host of two ranks would take all cores for its own.
bench-hosts: $(STAMP)
	@$(BIN)/python -m benchmarks run --namespaces --ranks 8 --ranks-per-host 2 --pin --passes 3 \
		--operations all_reduce,all_gather,reduce_scatter,broadcast,all_to_all \
		--sizes 4,256,4K,64K,1M,16M,256M --output docs/performance-hosts/results.json
	@$(BIN)/python -m benchmarks page docs/performance-hosts/results.json

# The slow link is made of network namespaces, which only root may make.
recipes: $(STAMP)
	@if [ "$$(id -u)" = 0 ] && ! PATH=$$PATH:/usr/sbin:/sbin which ip tc >/dev/null && which apt-get >/dev/null; then \
		echo "== install: iproute2"; \
		apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iproute2 >/dev/null; \
	fi
	@PATH=$$PATH:/usr/sbin:/sbin $(BIN)/python -m benchmarks.recipes

DOCS := $(VENV)/.docs-installed
$(DOCS): $(STAMP) pyproject.toml
	@echo "== install: Sphinx and its extensions"
	@{ ! $(OWN_INDEX) && $(UV_INSTALL) -e '.[docs]'; } || $(PIP_INSTALL) -e '.[docs]'
	@touch $@

docs-install: $(DOCS)

# A warning is an error: a link that leads nowhere, a name that the reference does not have.
docs: $(DOCS)
	@echo "== docs: sphinx-build, into build/docs"
	@PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/sphinx-build -q -E -W --keep-going -b html docs build/docs

BROWSER := chromium chromedriver
test-docs: docs
	@if ! which $(BROWSER) >/dev/null && which apt-get >/dev/null; then \
		echo "== install: chromium"; \
		apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			chromium chromium-driver >/dev/null; \
	fi
	@echo "== tests: the documentation in a browser"
	@$(BIN)/python -m pytest -q -m site tests/docs/test_site.py $(PYTEST_ARGS)

bench-mpi: $(STAMP)
	@$(BIN)/python -m benchmarks run --with-mpi --output docs/performance/results.json
	@$(BIN)/python -m benchmarks page

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -not -path './$(VENV)*/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(EMULATED) $(ECOSYSTEM) $(ENGINES) $(INSTALLED) .venv-torch-*
