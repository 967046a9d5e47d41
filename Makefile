# memprof's house-keeping.  `make help` lists what there is.
#
#   PYTHON=python3      the Python to build for
#   VENV=.venv          where the environment is made
#   TORCH=              what pip installs as torch, for example
#                       TORCH="torch==2.13.0"; empty: the torch that PYTHON
#                       already has, else the pinned pair of tools/bootstrap.py
#   PYTEST_ARGS=        more words for pytest
#   PYTESTS=7 8 9       releases of pytest that the plugin is tested under
#   ARGS=               more words for the benchmarks

PYTHON ?= python3
VENV ?= .venv
TORCH ?=
PYTEST_ARGS ?=
ARGS ?=
CORE_PYTHONS ?= 3.10 3.12 3.13
PYTESTS ?= 7 8 9
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

help:
	@echo "make demo           record a training run; demo/ gets recording and summary"
	@echo "make test           all tests; those for a GPU skip themselves without one"
	@echo "make test-gpu       tests/gpu, integration, programs and models, on a GPU"
	@echo "make plugin-test    the pytest plugin under pytest $(PYTESTS), beside other plugins"
	@echo "make bench          benchmarks on the CPU"
	@echo "make bench-gpu      benchmarks on a GPU"
	@echo "make lint           clang-format, clang-tidy, ruff, mypy"
	@echo "make format         let clang-format and ruff rewrite the files"
	@echo "make browser-tools  what the tests of the report need, browsers aside"
	@echo "make asan           C tests under AddressSanitizer and UBSan, leaks included"
	@echo "make tsan           C tests under ThreadSanitizer"
	@echo "make fuzz           the readers under libFuzzer, a minute each"
	@echo "make core-test      core and torch-free tests for PYTHON=python3.12, say"
	@echo "make core-test-all  the same for Python $(CORE_PYTHONS), as found"
	@echo "make consumers      tests with the tools that read our exports"
	@echo "make build          build in place: memprof._core and the torch shim"
	@echo "make clean          remove what was built; clean-all: environments too"
	@echo
	@echo "Variables: PYTHON VENV TORCH PYTEST_ARGS ARGS (head of the Makefile)"

.PHONY: help demo test test-gpu plugin-test browser-tools bench bench-gpu lint \
        format asan tsan core-test core-test-all core-test-in consumers \
        consumers-in build build-core clean clean-all

# ---- environment and build ------------------------------------------------

VPY := $(VENV)/bin/python
# One stamp per choice of torch: another TORCH= sets up again.
DEPS := $(VENV)/.stamp-deps$(if $(TORCH),-$(shell \
	printf '%s' '$(TORCH)' | cksum | cut -d' ' -f1))
LINT_DEPS := $(VENV)/.stamp-lint
SHIM := $(VENV)/.stamp-shim
EXT_SUFFIX := $(shell $(PYTHON) -c "import sysconfig; \
	print(sysconfig.get_config_var('EXT_SUFFIX'))" 2>/dev/null)
CORE := memprof/_core$(EXT_SUFFIX)

define CHECK_PYTHON
if [ -z "$(EXT_SUFFIX)" ]; then \
    echo "memprof set-up: there is no $(PYTHON) that runs: package python3" \
         "(apt-get install python3 python3-venv python3-dev)" >&2; \
    exit 1; \
fi
endef

$(DEPS): tools/bootstrap.py
	@$(CHECK_PYTHON)
	@$(PYTHON) tools/bootstrap.py $(VENV) --torch "$(TORCH)"
	@rm -f $(VENV)/.stamp-deps* $(SHIM)
	@touch $@

# Order-only: a new environment is no reason to compile the core again.
$(CORE): $(wildcard csrc/*.c csrc/*.h) setup.py | $(DEPS)
	@$(CHECK_PYTHON)
	@echo "building $@"
	@$(VPY) setup.py --quiet build_ext --inplace
	@touch $@

$(SHIM): $(shell find csrc/shim memprof/shim/*.py -type f 2>/dev/null) $(DEPS) \
         csrc/shim_api.h csrc/event.h csrc/common.h | $(CORE)
	@echo "building the torch shim"
	@$(VPY) -m memprof.shim build --into memprof/shim
	@touch $@

build-core: $(CORE)
build: $(CORE) $(SHIM)

# ---- the jobs -------------------------------------------------------------

demo: build
	@mkdir -p demo
	@if $(VPY) -c "import torchvision" 2>/dev/null; then \
	    name=resnet50; \
	else \
	    echo "no torchvision beside this torch: the demo trains the small GPT instead"; \
	    name=gpt; \
	fi; \
	rm -f demo/$$name.memprof demo/summary.txt; \
	$(VPY) examples/train_$$name.py --output demo/$$name.memprof \
	    --summary demo/summary.txt && \
	echo "recording: demo/$$name.memprof   summary: demo/summary.txt" && \
	echo "look again: $(VPY) -m memprof summary demo/$$name.memprof"

test: build
	@$(VPY) -m pytest tests $(PYTEST_ARGS)

CUDA_CHECK = $(VPY) -c "import torch, sys; torch.cuda.is_available() or \
	sys.exit('torch ' + torch.__version__ + ' sees no CUDA device here')"

test-gpu: build
	@$(CUDA_CHECK)
	@$(VPY) -m pytest tests/gpu tests/integration tests/programs tests/models \
	    $(PYTEST_ARGS)

# An environment for each pytest, which has everything else from this one.
plugin-test: build
	@failed=; \
	for major in $(PYTESTS); do \
	    echo "== pytest $$major"; \
	    $(VPY) tools/bootstrap.py .venv-pytest$$major --pytest $$major && \
	    .venv-pytest$$major/bin/python -m pytest tests/plugin $(PYTEST_ARGS) || \
	    failed="$$failed $$major"; \
	done; \
	if [ -n "$$failed" ]; then \
	    echo "plugin-test failed under pytest$$failed" >&2; exit 1; \
	fi

# The browsers themselves are Debian's: apt-get install chromium firefox-esr.
browser-tools: $(DEPS)
	@$(VPY) tools/bootstrap.py $(VENV) --browser
	@missing=; \
	for browser in chromium firefox-esr; do \
	    command -v $$browser >/dev/null || missing="$$missing $$browser"; \
	done; \
	test -z "$$missing" || \
	    echo "now install what is missing: apt-get install$$missing"

bench: build
	@$(VPY) benchmarks/hook.py
	@$(VPY) benchmarks/averages.py
	@$(VPY) benchmarks/pytest_plugin.py
	@$(VPY) benchmarks/overhead.py $(ARGS)

bench-gpu: build
	@$(CUDA_CHECK)
	@$(VPY) benchmarks/hook.py
	@$(VPY) benchmarks/averages.py --device cuda --batch 64 --size 224
	@$(VPY) benchmarks/overhead.py $(ARGS)

# The core without torch, for any Python.
CORE_TAG := $(shell $(PYTHON) -c "import sys; \
	print('%d.%d' % sys.version_info[:2])" 2>/dev/null)

core-test:
	@$(MAKE) core-test-in VENV=.venv-core-$(CORE_TAG) TORCH=none

core-test-in: build-core
	@$(VPY) -m pytest tests/unit tests/c $(PYTEST_ARGS)

core-test-all:
	@failed=; \
	for version in $(CORE_PYTHONS); do \
	    found=; \
	    for python in "python$$version" \
	        "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
	        if [ -z "$$found" ] && "$$python" -c pass >/dev/null 2>&1; then \
	            found=$$python; \
	        fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "== Python $$version: not on this machine, left out"; \
	    else \
	        echo "== Python $$version: $$found"; \
	        $(MAKE) core-test PYTHON="$$found" || failed="$$failed $$version"; \
	    fi; \
	done; \
	if [ -n "$$failed" ]; then \
	    echo "core-test failed for Python$$failed" >&2; exit 1; \
	fi

# The tools that read what we export (TensorBoard, HTA, the trace viewer), in
# an environment of their own, without torch.
CONSUMERS := tests/consumers/requirements.txt
CONSUMERS_DEPS := $(VENV)/.stamp-consumers

$(CONSUMERS_DEPS): $(CONSUMERS) | $(DEPS)
	@$(VPY) tools/bootstrap.py $(VENV) --requirements $(CONSUMERS)
	@touch $@

consumers:
	@$(MAKE) consumers-in VENV=.venv-consumers TORCH=none

consumers-in: build-core $(CONSUMERS_DEPS)
	@MEMPROF_CONSUMERS=all $(VPY) -m pytest tests/consumers $(PYTEST_ARGS)

# ---- C tests: one plain binary without Python, per sanitizer ---------------

# A source belongs to the Python edge if it includes <Python.h>, "edge.h",
# "state.h" or a header that includes <Python.h> itself; all others and tests/c
# make the binary.
INCLUDE = ^[[:space:]]*\#[[:space:]]*include[[:space:]]*
EDGE_HEADERS := "edge\.h"|"state\.h"$(shell \
	grep -l -E '$(INCLUDE)<Python\.h>' csrc/*.h 2>/dev/null | \
	sed 's,.*/,|",; s,\.,\\.,; s,$$,",' | tr -d '\n')
PLAIN_SOURCES := $(sort $(shell \
	grep -L -E '$(INCLUDE)(<Python\.h>|$(EDGE_HEADERS))' csrc/*.c 2>/dev/null))
C_TESTS := $(sort $(wildcard tests/c/*.c))
# NVIDIA's headers, where there are any (tools/cuda_headers.py).
CUDA_FLAGS := $(shell $(if $(wildcard $(VPY)),$(VPY),$(PYTHON)) \
	tools/cuda_headers.py 2>/dev/null)
C_FLAGS = $(CUDA_FLAGS) -std=c11 -D_GNU_SOURCE -Wall -Wextra -fno-strict-aliasing \
          -Werror=implicit-function-declaration -Icsrc -Itests/c -g -O1 \
          -fno-omit-frame-pointer -MMD -MP
C_LIBS = -lz -ldl -lpthread -lm
SANITIZE_asan = -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANITIZE_tsan = -fsanitize=thread

# $(1): asan or tsan.  The sources form an archive, so that the tests of one
# noun link while another noun is half written.
define C_BINARY
OBJECTS_$(1) := $$(PLAIN_SOURCES:%.c=build/c/$(1)/%.o)
TESTS_$(1) := $$(C_TESTS:%.c=build/c/$(1)/%.o)

build/c/$(1)/%.o: %.c Makefile
	@mkdir -p $$(@D)
	@gcc $$(C_FLAGS) $$(SANITIZE_$(1)) -c $$< -o $$@

# The list of objects is a prerequisite: a removed file links again.
build/c/$(1)/objects: FORCE
	@mkdir -p $$(@D)
	@echo '$$(OBJECTS_$(1)) $$(TESTS_$(1))' > $$@.new
	@cmp -s $$@.new $$@ || cp $$@.new $$@

build/c/$(1)/libplain.a: $$(OBJECTS_$(1)) build/c/$(1)/objects
	@rm -f $$@; ar rcs $$@ $$(OBJECTS_$(1))

build/c/$(1)/mp_tests: $$(TESTS_$(1)) build/c/$(1)/libplain.a
	@gcc -rdynamic $$(SANITIZE_$(1)) $$^ -o $$@ $$(C_LIBS)

-include $$(OBJECTS_$(1):.o=.d) $$(TESTS_$(1):.o=.d)
endef
$(eval $(call C_BINARY,asan))
$(eval $(call C_BINARY,tsan))
FORCE:
.PHONY: FORCE

asan:
	@$(MAKE) -j$(JOBS) build/c/asan/mp_tests
	@ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 \
	 UBSAN_OPTIONS=print_stacktrace=1 build/c/asan/mp_tests $(ARGS)

# GCC's ThreadSanitizer cannot map its shadow when the kernel moves addresses
# about widely (vm.mmap_rnd_bits=32): where setarch may, it turns that off.
tsan:
	@$(MAKE) -j$(JOBS) build/c/tsan/mp_tests
	@run=; setarch -R true 2>/dev/null && run="setarch -R"; \
	 TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
	 $$run build/c/tsan/mp_tests $(ARGS)

# ---- fuzzing: clang's libFuzzer over the readers ----------------------------

FUZZ ?= recording snapshot json
FUZZ_SECONDS ?= 60

FUZZ_FLAGS = $(CUDA_FLAGS) -std=c11 -D_GNU_SOURCE -Icsrc -g -O1 -MMD -MP \
             -fno-sanitize-recover=undefined
FUZZ_OBJECTS := $(PLAIN_SOURCES:%.c=build/c/fuzz/%.o)

build/c/fuzz/%.o: %.c Makefile
	@mkdir -p $(@D)
	@clang $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link,address,undefined -c $< -o $@

build/c/fuzz/libplain.a: $(FUZZ_OBJECTS)
	@rm -f $@; ar rcs $@ $^

build/fuzz/%: tests/fuzz/fuzz_%.c build/c/fuzz/libplain.a tests/fuzz/fuzz.h
	@mkdir -p $(@D)
	@clang $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined \
	    $(filter-out %.h,$^) $(C_LIBS) -o $@

-include $(FUZZ_OBJECTS:.o=.d)

# Seeds: what is there, the small ones; what is found comes beside them.
fuzz: $(FUZZ:%=build/fuzz/%)
	@for name in $(FUZZ); do \
	    corpus=build/fuzz/corpus-$$name; \
	    mkdir -p $$corpus; \
	    if [ $$name = recording ]; then cp tests/golden/*.memprof $$corpus/; fi; \
	    ASAN_OPTIONS=quarantine_size_mb=16 build/fuzz/$$name -max_len=4096 \
	        -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 \
	        -artifact_prefix=build/fuzz/$$name. $$corpus || exit 1; \
	done

# ---- lint -----------------------------------------------------------------

C_FILES = $(sort $(wildcard csrc/*.c csrc/*.h csrc/shim/*.cpp csrc/shim/*.h \
                            tests/c/*.c tests/c/*.h))
PY_FILES = $(wildcard setup.py memprof tests tools benchmarks examples)
PY_INCLUDE = $(shell $(PYTHON) -c "import sysconfig; \
	print(sysconfig.get_paths()['include'])" 2>/dev/null)

$(LINT_DEPS): $(DEPS) pyproject.toml
	@$(VPY) tools/bootstrap.py $(VENV) --lint
	@touch $@

define CHECK_CLANG
missing=; \
for tool in clang-format clang-tidy; do \
    command -v $$tool >/dev/null 2>&1 || missing="$$missing $$tool"; \
done; \
if [ -n "$$missing" ]; then \
    echo "make lint needs the Debian packages:$$missing" \
         "(apt-get install$$missing)" >&2; \
    exit 1; \
fi
endef

# Every check runs, so that one look shows all there is to do.
lint: $(LINT_DEPS)
	@$(CHECK_CLANG)
	@failed=; \
	check() { \
	    name=$$1; shift; echo "$$name"; "$$@" || failed="$$failed $$name,"; \
	}; \
	tidy() { \
	    printf '%s\n' $(wildcard csrc/*.c) | xargs -P $(JOBS) -n 4 sh -c \
	    'clang-tidy --quiet "$$@" -- -std=c11 -D_GNU_SOURCE -Wall -Wextra \
	    -Icsrc $(CUDA_FLAGS) -isystem $(PY_INCLUDE) 2>/dev/null' lint; \
	}; \
	check "clang-format" clang-format --dry-run --Werror $(C_FILES); \
	check "clang-tidy" tidy; \
	check "ruff check" $(VPY) -m ruff check --output-format concise $(PY_FILES); \
	check "ruff format" $(VPY) -m ruff format --check $(PY_FILES); \
	check "mypy" $(VPY) -m mypy; \
	if command -v tsc >/dev/null; then \
	    check "tsc" tsc -p memprof/reports/app/tsconfig.json; \
	else \
	    echo "tsc: not here (Debian: node-typescript), the page's script unchecked"; \
	fi; \
	if [ -n "$$failed" ]; then echo "lint failed:$${failed%,}" >&2; exit 1; fi; \
	echo "lint: clean"

format: $(LINT_DEPS)
	@$(CHECK_CLANG)
	@clang-format -i $(C_FILES)
	@$(VPY) -m ruff check --fix --quiet $(PY_FILES) || true
	@$(VPY) -m ruff format --quiet $(PY_FILES)

# ---- clean ----------------------------------------------------------------

clean:
	rm -rf build dist demo *.egg-info memprof/shim/src .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache
	rm -f memprof/_core*.so memprof/shim/*.so .venv*/.stamp-shim
	find memprof tests tools benchmarks examples -name __pycache__ \
	    -prune -exec rm -rf {} + 2>/dev/null || true

clean-all: clean
	rm -rf .venv .venv-*
