# Every target makes .venv and installs what it needs; the stamp file makes a second run quick.
#   make demo   four ranks train a model on real images
#   make test   lint, types, tests
#   make matrix  every fault in every phase over every transport (make test tries a part of them)
#   make PYTHON=/path/to/python3.12 ...   to choose the interpreter of a new .venv

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format types imported pytest matrix soak fuzz test-gpu test-gpu-emulated bench bench-mpi bench-network clean distclean
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
	@echo "make lint       ruff check, ruff format --check"
	@echo "make matrix     every fault in every phase over every transport"
	@echo "make soak       eight ranks at work for five minutes: nothing may grow"
	@echo "make fuzz       coverage-guided fuzzing of all that reads a stranger's bytes"
	@echo "make format     let ruff mend what it can"
	@echo "make test-gpu   the tests that need a GPU, with the python3 of this machine as it is"
	@echo "make test-gpu-emulated   the same without one, on emulated devices (installs torch for CUDA: gigabytes)"
	@echo "make bench      compare with Gloo on this machine (bench-mpi: with MPI; bench-network: between hosts)"
	@echo "make clean      remove caches and build outputs (make distclean: .venv and .venv-emulated as well)"

# A name on PATH may be a shim with no interpreter behind it, so each candidate is run.
define find_python
for candidate in $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3.13 python3); do \
	if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
		>/dev/null 2>&1; then python=$$candidate; break; fi; \
done
endef

# pip would compile 12,000 files, most of which nobody imports; torch alone is for ranks that start
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
				"(looked for: $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3.13 python3))." >&2; \
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

types: $(STAMP)
	@echo "== types: mypy --strict aiodist"
	@$(BIN)/mypy --strict

# Silent: what cannot be imported, pytest says.
imported: $(STAMP)
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true

# Most tests wait for processes, so three at a time suit two cores; their limits then take double.
pytest: $(STAMP)
	@echo "== tests: pytest"
	@AIODIST_TEST_TIMEOUT_SCALE=$${AIODIST_TEST_TIMEOUT_SCALE:-2} \
		$(BIN)/python -m pytest -n 3 --dist worksteal $(PYTEST_ARGS)

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

fuzz: $(STAMP)
	@$(PIP_INSTALL) -e '.[fuzz]'
	@echo "== fuzz: the tests of random examples, with others than in make test"
	@$(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile explore
	@$(BIN)/python -m tests.fuzz

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
		torch==2.11.0 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 pytest -e .
	@touch $@

test-gpu-emulated: $(EMULATED)/.installed
	@$(EMULATED)/bin/python tests/gpu/emulated/build.py
	@echo "== tests: one emulated GPU"
	@$(EMULATED_TESTS) -k 'not figures' tests/gpu
	@echo "== tests: four emulated GPUs"
	@EMULATED_DEVICES=4 $(EMULATED_TESTS) tests/gpu/test_several_gpus.py

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

# Hosts made of network namespaces: the right to administer networks is needed.
bench-network: $(STAMP)
	@$(BIN)/python -m benchmarks run --namespaces --ranks 2 --passes 3 \
		--output docs/performance-network/results.json
	@$(BIN)/python -m benchmarks page --network docs/performance-network/results.json

bench-mpi: $(STAMP)
	@$(BIN)/python -m benchmarks run --with-mpi --output docs/performance/results.json
	@$(BIN)/python -m benchmarks page

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -not -path './$(VENV)*/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(EMULATED)
