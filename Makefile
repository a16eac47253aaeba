# The front door: `make help` lists everything. The work is done by CMake and the scripts under tools/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BUILD := build
# A compiler with the precompiled header takes about 1.3 GB, so memory limits the jobs too.
JOBS ?= $(shell awk -v cores=$$(nproc) '/MemAvailable/ { fit = int($$2 / 1400000); print fit < 1 ? 1 : fit < cores ? fit : cores }' /proc/meminfo)
PREFIX ?= /usr/local
ARGS ?=
UNITY ?= ON
# Without a GPU the CUDA sources are still compiled by `make test`, where CUDA's headers are found.
LEVIN_CUDA ?= $(if $(wildcard /dev/nvidiactl),AUTO,COMPILE)
LEVIN_TORCH ?=
export LEVIN_TORCH
# CXX where it is given. Asked late: tools/setup may have installed a compiler just now.
COMPILER = $(if $(filter default,$(origin CXX)),$(shell tools/compiler),$(CXX))

CONFIGURE = -G Ninja -DCMAKE_CXX_COMPILER=$(COMPILER) -DLEVIN_TORCH=$(LEVIN_TORCH) -DLEVIN_CUDA=$(LEVIN_CUDA) -DLEVIN_UNITY=$(UNITY) -DLEVIN_BENCH=ON $(CMAKE_ARGS)
NINJA := cmake --build $(BUILD) -j $(JOBS) --target

.PHONY: help run build test bench docs format lint gpu install wheel package clean setup-% configure

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  Options: ARGS="..." (run, bench), T=pattern and LABEL=unit|multi|parity|fault|gpu (test), TIDY=1 (lint), PREFIX=DIR (install),'
	@echo '           JOBS=N, UNITY=OFF (for working on the sources), CXX=COMPILER, LEVIN_TORCH=DIR, LEVIN_CUDA=AUTO|ON|OFF|COMPILE'

run: setup-run configure ## train a small vision transformer: the quickest way to see Levin work
	@$(NINJA) example_train_vit
	@$(BUILD)/bin/examples/train_vit $(ARGS)

build: setup-run configure ## the library, the program `levin` and the examples
	@$(NINJA) product

# Three tests run at a time: many wait for ranks and timeouts. A thread of OpenMP that waits must leave its core to another test
# (docs/build.md).
test: setup-test configure ## build everything and run the tests (those for a GPU where there is one)
	@$(NINJA) all cuda_compiles
	@OMP_WAIT_POLICY=passive ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j 3 \
	  $(if $(T),-R '$(T)') $(if $(LABEL),-L '$(LABEL)',$(if $(wildcard /dev/nvidiactl),,-LE gpu))

bench: setup-bench configure ## run Levin beside its Python peers and print the ratios
	@$(NINJA) benches
	@bench/run $(ARGS)

docs: setup-docs ## the documentation as a site with search, in build/site (SITE=DIR: elsewhere)
	@$(BUILD)/venv-docs/bin/python tools/site/build $(or $(SITE),$(BUILD)/site)

format: ## format the C++ sources in place
	@tools/format

lint: ## check formatting, floors, links and words (TIDY=1: clang-tidy too)
	@tools/lint

gpu: ## on a machine with a GPU: configure, build, test, measure
	@tools/gpu all

install: build ## install into PREFIX, for find_package(Levin)
	@cmake --install $(BUILD) --prefix '$(PREFIX)' | tail -n 1
	@echo 'Levin is in $(PREFIX); LibTorch stays where it was: $(if $(LEVIN_TORCH),$(LEVIN_TORCH),$(CURDIR)/$(BUILD)/deps)'

wheel: setup-package configure ## a Python wheel with the program and the library, in build/packages
	@$(NINJA) levin levin_program
	@cmake/package/wheel.py $(BUILD) $(BUILD)/packages

package: setup-package configure ## an archive that works in any folder and a Debian package, in build/packages
	@$(NINJA) levin levin_program
	@cd $(BUILD) && cpack | sed -n 's/^CPack: - package: \(.*\) generated\.$$/\1/p'

clean: ## remove what was built; downloads stay (they are in build/deps)
	@[[ ! -d $(BUILD) ]] || find $(BUILD) -mindepth 1 -maxdepth 1 ! -name deps ! -name 'venv*' -exec rm -rf {} +

setup-%:
	@tools/setup $*

# CMake runs again when an option has changed or the test library has come; sources that come and go are seen by ninja. Another compiler
# starts the folder again.
configure:
	@options='$(CONFIGURE) gtest=$(wildcard /usr/include/gtest/gtest.h /usr/local/include/gtest/gtest.h) benchmark=$(wildcard /usr/include/benchmark/benchmark.h)'; \
	if [[ ! -e $(BUILD)/build.ninja || $$options != "$$(cat $(BUILD)/.options 2>/dev/null)" ]]; then \
	  mkdir -p $(BUILD); rm -f $(BUILD)/.options; \
	  if ! grep -q "^CMAKE_CXX_COMPILER:[A-Z]*=$$(command -v $(COMPILER))\$$" $(BUILD)/CMakeCache.txt 2>/dev/null; then rm -rf $(BUILD)/CMakeCache.txt $(BUILD)/CMakeFiles; fi; \
	  cmake -S . -B $(BUILD) --log-level=STATUS $(CONFIGURE) | { grep -v -E '^-- (Detecting|Check|Looking|Performing|The CXX|Found Threads|Generating|Configuring|Build files)' || true; }; \
	  echo "$$options" > $(BUILD)/.options; \
	fi
