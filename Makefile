# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets. Nothing needs to be there but Python >= 3.10, g++ and make.

# A Python or a PyTorch that is asked for has an environment of its own, beside the default one: PYTHON=python3.12 is
# in .venv-3.12, TORCH=2.15.0 in .venv-torch2.15.0, and both together in .venv-3.12-torch2.15.0.
TORCH ?=
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell command -v python3.11 || command -v python3)
VENV ?= .venv$(TORCH:%=-torch%)
else
VENV ?= .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')$(TORCH:%=-torch%)
endif
JOBS ?= $(shell nproc)
# Processes that run Python tests. Most tests compile, which keeps one core busy, and use one or two GiB; others wait for
# ranks and timeouts, which two processes more than there are cores make up for.
TEST_JOBS ?= $(shell n=$$(nproc); echo $$((n < 2 ? n + 2 : 4)))
# ON stops the build at the first warning: for continuous integration alone.
WARNINGS_AS_ERRORS ?= OFF

PY := $(VENV)/bin/python
SETUP := $(PYTHON) tools/bootstrap.py --venv $(VENV) $(TORCH:%=--torch %)
ifeq ($(WARNINGS_AS_ERRORS),ON)
SETUP += --warnings-as-errors
endif
CMAKE_TESTS = PATH="$(abspath $(VENV))/bin:$$PATH" cmake -S . -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_MAKE_PROGRAM="$(abspath $(VENV))/bin/ninja" -DOUTBOARD_TORCH=OFF -DOUTBOARD_CPP_TESTS=ON \
  -DOUTBOARD_WARNINGS_AS_ERRORS=$(WARNINGS_AS_ERRORS)
# Clang for the host driver, from the package ziglang.
HOST_COMPILER = $(shell $(PY) -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))')
CTEST = OUTBOARD_HOST_COMPILER="$(HOST_COMPILER)" "$(abspath $(VENV))/bin/ctest" --output-on-failure
CPP_FILES = $(shell git ls-files 'csrc/*.cpp' 'csrc/*.h' 'csrc/*.c' 'include/*.h' 'tests/cpp/*.cpp' 'tests/cpp/*.h' 'tests/sanitize/*.cpp' 'examples/*.cpp' 'src/outboard/templates/*.c' 'src/outboard/templates/*.h' 'tests/device/*.cpp')
PYTEST_ARGUMENTS ?=
BENCH_ARGUMENTS ?=
FUZZ_ARGUMENTS ?=
SWEEP_ARGUMENTS ?=
DISTRIBUTIONS_ARGUMENTS ?=
JUDGE_ARGUMENTS ?=
RELEASES_ARGUMENTS ?=
PROGRAMS_ARGUMENTS ?=
BAKED_ARGUMENTS ?=

# Each process would compile the sources of PyTorch again, at twice the cost of its import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-smoke demo demo-short accuracy baked-numbers decompositions test test-full test-cpp test-cuda-text test-distributed-judge test-sanitize test-ecosystem test-hip test-limits test-mpi test-newest test-nvrtc test-oclgrind test-python test-smoke test-strict test-wheel test-wheels lint format bench bench-gpu bench-sweep modules opinfo opinfo-float32 programs distributions releases fuzz fuzz-aliases fuzz-collectives fuzz-files wheel wheels docs docs-serve clean distclean

help:  ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Environment, PyTorch, Clang, Outboard: made once, then reused; needs no root
	@$(SETUP) --groups demo cpu

demo: setup  ## The main job: search with a real model, training, ResNet-50, on the device
	@$(PY) -m examples.demo

demo-short: setup  ## The same with smaller sizes and fewer repeats
	@$(PY) -m examples.demo --short

test:  ## Lint, C++ tests, the short demo (the second time from caches alone), the strict driver, Python tests
	@$(SETUP) --opencl --groups demo test lint docs
	@$(MAKE) --no-print-directory -j2 --output-sync lint test-cpp
	@$(PY) -m examples.demo --short
	@$(PY) -m examples.demo --short --expect-warm
	@$(MAKE) --no-print-directory test-strict
	@$(MAKE) --no-print-directory test-limits
	@$(MAKE) --no-print-directory test-python

test-full: export OUTBOARD_TEST_FULL := 1
test-full: test opinfo-float32 accuracy test-sanitize test-oclgrind test-cuda-text test-mpi test-newest test-wheels  ## Everything in test, every OpInfo, functions against float64, sanitizers, Oclgrind, kernels for GPUs, MPI, the newest PyTorch, wheels in clean environments
	@$(MAKE) --no-print-directory test-strict STRICT_TESTS="tests/device tests/compiler tests/kernels"
	@$(MAKE) --no-print-directory test-limits LIMITS="small single narrow wide" LIMITS_TESTS="$(LIMITS_TESTS_FULL)" LIMITS_MATCH=

test-cpp:  ## C++ tests of runtime and drivers, without PyTorch
	@$(SETUP) --opencl --groups demo test lint --no-build
	@mkdir -p build
	@$(CMAKE_TESTS) -B build/cpp -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" >build/cpp-configure.log \
	  || (cat build/cpp-configure.log; exit 1)
	@$(VENV)/bin/cmake --build build/cpp -j $(JOBS)
	@cd build/cpp && $(CTEST) --timeout 300

SANITIZED = -DCMAKE_CXX_FLAGS="-fsanitize=$(1) -fno-omit-frame-pointer" >build/sanitize-configure.log

# Sanitizers for the tour through Python.
TOURS ?= address,undefined thread

test-sanitize:  ## AddressSanitizer, UBSan and ThreadSanitizer over the C++ tests and a tour through Python
	@$(SETUP) --opencl --groups demo test lint --no-build
	@mkdir -p build
	@for kind in address,undefined thread; do \
	  $(CMAKE_TESTS) -B build/$${kind%%,*} $(call SANITIZED,$$kind) \
	    && $(VENV)/bin/cmake --build build/$${kind%%,*} -j $(JOBS) || exit 1; \
	done
	@# LeakSanitizer's own tracer crashes in processes where PoCL has compiled something: leaks are looked for elsewhere.
	@cd build/address && ASAN_OPTIONS=detect_leaks=0 $(CTEST) -E "plan|memory_sim" --timeout 300
	@cd build/address && $(CTEST) -R "plan|memory_sim" --timeout 300
	@cd build/thread && $(CTEST) -R "memory_sim|memory_lock|shared_memory|thread_pool|batches$$"
	@for kind in $(TOURS); do \
	  $(CMAKE_TESTS) -B build/python-$${kind%%,*} -DOUTBOARD_TORCH=ON -DOUTBOARD_CPP_TESTS=OFF \
	    -DPython_EXECUTABLE="$(abspath $(PY))" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" $(call SANITIZED,$$kind) \
	    && $(VENV)/bin/cmake --build build/python-$${kind%%,*} -j $(JOBS) \
	    && PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) -m tests.sanitize $${kind%%,*} build/python-$${kind%%,*} || exit 1; \
	done

test-ecosystem:  ## The libraries that people use, from their packages, on the device (docs/libraries.md)
	@$(SETUP) --opencl --groups demo test
	@$(PYTHON) tools/bootstrap.py --venv $(VENV)-ecosystem --over $(VENV) --groups ecosystem
	@OMP_WAIT_POLICY=passive OUTBOARD_TEST_ECOSYSTEM=1 $(VENV)-ecosystem/bin/python -m pytest -q -rs -n $(TEST_JOBS) --dist loadfile tests/integrations

test-mpi:  ## Collectives through MPI, from pip, between processes of this machine
	@$(SETUP) --groups demo test
	@$(PYTHON) tools/bootstrap.py --venv $(VENV)-mpi --over $(VENV) --groups mpi
	@OMP_WAIT_POLICY=passive $(VENV)-mpi/bin/python -m pytest -q -rs -n 0 tests/distributed/test_mpi.py

test-distributed-judge:  ## PyTorch's own tests of torch.distributed on the device's backend, about 40 minutes on two cores
	@$(SETUP) --groups demo test
	@OMP_WAIT_POLICY=passive $(PY) tools/distributed_judge.py $(JUDGE_ARGUMENTS)

test-oclgrind:  ## Every family of kernels for GPUs on Oclgrind: invalid accesses, races
	@$(SETUP) --opencl --groups demo test
	@$(PY) -m tests.oclgrind

test-nvrtc:  ## What the compiler writes for GPUs of NVIDIA, compiled by NVRTC; needs no GPU
	@$(SETUP) --opencl --groups demo test
	@$(PY) -m tests.gpu_compilers --dialect cuda

test-hip:  ## What the compiler writes for GPUs of AMD, compiled by Debian's hipcc; needs no GPU
	@$(SETUP) --opencl --groups demo test
	@$(PY) -m tests.gpu_compilers --dialect hip --only families models

# What a GPU of NVIDIA would compile, on the processor: families of kernels one by one, then the tests of kernels.
CUDA_TEXT_TESTS ?= $(LIMITS_TESTS_FULL)

test-cuda-text:  ## Programs in CUDA C++, run on the processor, against the CPU
	@$(SETUP) --groups demo test
	@$(PY) -m tests.cuda_text
	@OMP_WAIT_POLICY=passive OUTBOARD_DRIVER=host OUTBOARD_HOST_DIALECT=cuda \
	  $(PY) -m pytest -q -n $(TEST_JOBS) --dist loadfile $(CUDA_TEXT_TESTS)
	@OUTBOARD_HOST_DIALECT=cuda $(PY) -m tools.fuzz --driver host --operators 5000 --jobs $(JOBS)
	@OUTBOARD_HOST_DIALECT=cuda $(PY) -m tools.fuzz --driver host --operators 1000 --mode compiled --jobs $(JOBS)

test-python:  ## Python tests only, in TEST_JOBS processes; the slowest fifty are listed
	@OMP_WAIT_POLICY=passive $(PY) -m pytest -q -n $(TEST_JOBS) --dist loadfile --durations 50 --durations-min 1 $(PYTEST_ARGUMENTS)

# What exercises memory, copies, streams, graphs, compilation and failures most, in few minutes.
STRICT_TESTS ?= $(addprefix tests/device/test_,copies.py streams.py pinned.py memory.py memory_proof.py capture.py \
  assertions.py foreach.py) tests/compiler/test_graphs.py

# Run in test-python: these are slow, or choose the strict driver themselves.
STRICT_SKIPPED = part_of_the_memory or work_on_the_cpu_run or late_failure

test-strict:  ## STRICT_TESTS on the strict driver: a slow, discrete device that checks its caller
	@OMP_WAIT_POLICY=passive OUTBOARD_DRIVER=strict $(PY) -m pytest -q -n $(TEST_JOBS) --dist loadfile $(STRICT_TESTS) \
	  -k "not ($(STRICT_SKIPPED))"

# Devices that do not exist: what each declares (docs/driver.md). A part of one of them is in `test`, all in `test-full`.
LIMITS ?= small
LIMITS_small = TYPE=gpu VECTOR_WIDTH=1 WORK_GROUP=32 LOCAL_MEMORY=1KiB MAX_ALLOCATION=64MiB FP64=0
LIMITS_single = TYPE=gpu VECTOR_WIDTH=1 WORK_GROUP=1 LOCAL_MEMORY=1KiB
LIMITS_narrow = TYPE=cpu VECTOR_WIDTH=4 NEAR_CACHE=16KiB FP16=0 FP64=0 INT64_ATOMICS=0
LIMITS_wide = TYPE=accelerator VECTOR_WIDTH=256 NEAR_CACHE=64KiB LAST_CACHE=1MiB LOCAL_MEMORY=1KiB ALIGNMENT=16
LIMITS_TESTS_FULL = $(addprefix tests/kernels/test_,attention.py attention_calls.py conv.py gemm.py halves.py index.py \
  pool.py recurrent.py scan.py sort.py)
LIMITS_TESTS ?= $(addprefix tests/kernels/test_,conv.py gemm.py scan.py sort.py)
# One size or so of everything.
LIMITS_MATCH ?= size1 or search or order or topk or dtypes or cumulative

test-limits: $(addprefix test-limits-,$(LIMITS))  ## LIMITS_TESTS on devices that declare little (LIMITS) and refuse what exceeds it

test-limits-%:
	$(if $(LIMITS_$*),,$(error LIMITS: '$*' is none of small, single, narrow, wide))
	@env OMP_WAIT_POLICY=passive OUTBOARD_DRIVER=strict OUTBOARD_STRICT_DELAY=0 \
	  $(addprefix OUTBOARD_STRICT_,$(LIMITS_$*)) \
	  $(PY) -m pytest -q -n $(TEST_JOBS) --dist loadfile $(LIMITS_TESTS) -k "$(LIMITS_MATCH)"

FUZZ_COUNT ?= 1000000
FUZZ_SEED ?= 1

fuzz-files:  ## Damaged plans and models under right checksums, loaded and run with sanitizers; FUZZ_COUNT=, FUZZ_SEED=
	@$(SETUP) --opencl --groups demo test lint --no-build
	@PATH="$(abspath $(VENV))/bin:$$PATH" cmake -S . -B build/address -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DOUTBOARD_TORCH=OFF -DOUTBOARD_CPP_TESTS=ON \
	  -DCMAKE_CXX_FLAGS="-fsanitize=address,undefined -fno-omit-frame-pointer" >build/sanitize-configure.log
	@$(VENV)/bin/cmake --build build/address -j $(JOBS) --target fuzz_files
	@ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  build/address/tests/cpp/fuzz_files $(FUZZ_COUNT) $(FUZZ_SEED)

# Each release of PyTorch has other types; the sources' are checked with those of the one that `make` installs.
lint:  ## ruff, mypy --strict (not with TORCH=2.15.0), clang-format
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(if $(filter-out 2.13%,$(TORCH)),echo "no mypy: types are checked with PyTorch 2.13",$(VENV)/bin/mypy)
	@$(VENV)/bin/clang-format --dry-run -Werror $(CPP_FILES)

format:  ## Rewrite the sources in the project's style
	@$(SETUP) --groups lint --no-build
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/clang-format -i $(CPP_FILES)

bench:  ## Models, operators, start-up against CPU eager and CPU Inductor: table, JSON, chart; BENCH_ARGUMENTS=--quick
	@$(SETUP) --opencl --groups demo cpu
	@$(PY) -m benchmarks.bench $(BENCH_ARGUMENTS)

bench-sweep:  ## Operators beside the benchmarked ones against CPU eager; BENCH_ARGUMENTS="--match conv"
	@$(SETUP) --opencl --groups demo cpu
	@$(PY) -m benchmarks.sweep $(BENCH_ARGUMENTS)

# Each part tries what the next one takes for granted. PEER is an interpreter whose PyTorch has CUDA.
bench-gpu: export OUTBOARD_DRIVER = cuda
bench-gpu: export OUTBOARD_CUDA_MATRIX_UNITS = 1
bench-gpu:  ## On a GPU of NVIDIA: the driver's contract, kernels, OpInfos, then times beside torch.cuda (docs/gpu.md); PEER=python
	@$(SETUP) --groups demo test
	@$(PY) -m outboard_conformance --driver cuda --level kernels
	@$(PY) -m pytest -q -n $(TEST_JOBS) --dist loadfile tests/kernels
	@$(PY) tools/opinfo.py --jobs $(TEST_JOBS)
	@$(PY) -m benchmarks.gpu $(addprefix --peer ,$(PEER)) $(BENCH_ARGUMENTS)

accuracy:  ## docs/accuracy.md: every function and reduction against float64, beside PyTorch's CPU
	@$(SETUP) --opencl --groups demo test
	@$(PY) tools/accuracy.py --write docs/accuracy.md

opinfo:  ## docs/operators.md: every OpInfo and dtype, forward and backward, against the CPU; goes on where it was stopped
	@$(SETUP) --opencl --groups demo test
	@$(PY) tools/supported.py --write docs/operators.md $(OPINFO_ARGUMENTS)

opinfo-float32:  ## Every float32 OpInfo on the device against the CPU
	@$(SETUP) --opencl --groups demo test
	@$(PY) tools/opinfo.py

baked-numbers:  ## Number arguments of every operator: which compile anew for each value; BAKED_ARGUMENTS="--match topk"
	@$(SETUP) --opencl --groups demo test
	@$(PY) -m tools.baked_numbers $(BAKED_ARGUMENTS)

distributions:  ## Random numbers against their laws, ten million of each; DISTRIBUTIONS_ARGUMENTS="--match exponential"
	@$(SETUP) --opencl --groups demo test
	@$(PY) tools/distributions.py --drivers host opencl simt cuda $(DISTRIBUTIONS_ARGUMENTS)

decompositions:  ## Decompositions and lowerings against the CPU's kernels, over grids of arguments; SWEEP_ARGUMENTS="--family norms"
	@$(SETUP) --opencl --groups demo test
	@$(PY) -m tools.decompositions --state build/decompositions.json $(SWEEP_ARGUMENTS)

modules:  ## The modules and optimizers of PyTorch's own tests against the CPU; MODULES_ARGUMENTS="--way compiled"
	@$(SETUP) --groups demo test
	@$(PY) -m tools.module_lists $(MODULES_ARGUMENTS)

programs:  ## Programs of users' on several drivers against the CPU; PROGRAMS_ARGUMENTS="--driver sim --match autograd"
	@$(SETUP) --groups demo test
	@$(PY) -m tools.programs $(PROGRAMS_ARGUMENTS)

fuzz:  ## Random programs on the device against the CPU; FUZZ_ARGUMENTS="--mode compiled --operators 5000"
	@$(SETUP) --opencl --groups demo test
	@$(PY) -m tools.fuzz --operators 200000 --invalid 0.08 --jobs $(JOBS) $(FUZZ_ARGUMENTS)

fuzz-aliases:  ## Random programs of views and writes that overlap, compiled against eager; FUZZ_ARGUMENTS="--seed 7"
	@$(SETUP)
	@$(PY) -m tools.fuzz_aliases --programs 20000 $(FUZZ_ARGUMENTS)

fuzz-collectives:  ## Random programs of collectives between processes, against their definition; FUZZ_ARGUMENTS="--transport sockets"
	@$(SETUP) --groups demo test
	@OMP_WAIT_POLICY=passive $(PY) -m tools.fuzz_collectives --operations 20000 $(FUZZ_ARGUMENTS)

releases:  ## docs/releases.md: tests with each PyTorch and Python; RELEASES_ARGUMENTS="2.15.0:3.11 --suite full"
	@$(PYTHON) tools/releases.py $(RELEASES_ARGUMENTS)

wheel:  ## dist/outboard-*.whl, for this Python and PyTorch, on the systems that its tag names
	@$(SETUP) --groups demo cpu --no-build
	@$(PY) tools/make_wheel.py

wheels:  ## The same for each PyTorch that the sources are for
	@for torch in $$($(PYTHON) tools/torch_requirement.py); do \
	  $(MAKE) --no-print-directory wheel TORCH=$$torch || exit 1; \
	done

test-wheel:  ## The wheel, installed into an empty environment, where it trains
	@$(SETUP) --groups demo cpu --no-build
	@tools/check_wheel.sh $(PY)

test-wheels:  ## The same for each PyTorch that the sources are for
	@for torch in $$($(PYTHON) tools/torch_requirement.py); do \
	  $(MAKE) --no-print-directory test-wheel TORCH=$$torch || exit 1; \
	done

setup-smoke:  ## What test-smoke needs, without Outboard
	@$(SETUP) --groups demo test --no-build

test-smoke:  ## Few minutes of tests that tell whether a PyTorch fits, as in `make test-smoke TORCH=2.15.0`
	@$(SETUP) --groups demo test
	@OMP_WAIT_POLICY=passive $(PY) -m pytest -q -n $(TEST_JOBS) --dist loadfile $(shell $(PYTHON) tools/releases.py --list smoke)

test-newest:  ## The same with the newest PyTorch that the sources are for
	@$(MAKE) --no-print-directory test-smoke TORCH=$(lastword $(shell $(PYTHON) tools/torch_requirement.py))

docs:  ## The documents as a site, in build/site
	@$(SETUP) --groups docs --no-build
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet

docs-serve:  ## The same, shown at http://127.0.0.1:8000 and made anew when a page changes
	@$(SETUP) --groups docs --no-build
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve

clean:  ## Remove build products; the environment stays
	rm -rf build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis

distclean: clean  ## Remove the environments too
	rm -rf $(VENV) .venv-*
