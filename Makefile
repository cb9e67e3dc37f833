# Everything here installs what it needs, pinned, below .cache/ and nowhere else.
# `python3 -m unittest` needs none of it.

PYTHON ?= python3
PYTHONS = 3.9 3.10 3.11 3.12 3.13 3.14
RUFF = ruff==0.17.6
MYPY = mypy==1.20.2
# The last release that still measures 3.9; toml, because 3.9 has no tomllib.
COVERAGE = coverage[toml]==7.10.7

.PHONY: test test-all lint format coverage rows schema-suite conformance
.PHONY: bench counts tiny arm proxies interop interop-short
.PHONY: fuzz soak soak-short clean

test:
	$(PYTHON) -m unittest

# The test suite on every Python that this machine has.
test-all:
	@for v in $(PYTHONS); do \
	  p=$$(tests/find-python $$v) || { echo "Python $$v: not here"; continue; }; \
	  echo "Python $$v"; $$p -W error -m unittest || exit 1; \
	done

.cache/lint/.made: Makefile
	$(PYTHON) -m venv --clear .cache/lint
	.cache/lint/bin/pip install -q --disable-pip-version-check $(RUFF) $(MYPY)
	@touch $@

lint: .cache/lint/.made
	.cache/lint/bin/ruff check .
	.cache/lint/bin/ruff format --check .
	.cache/lint/bin/mypy --strict tinymcp

format: .cache/lint/.made
	.cache/lint/bin/ruff check --fix .
	.cache/lint/bin/ruff format .

# Branches, over the oldest and the newest Python and over child processes. Below 95 % is
# an error for the runtime alone as well as for everything.
coverage:
	@rm -f .coverage .coverage.*
	@for v in 3.9 3.13; do \
	  p=$$(tests/find-python $$v) || { echo "Python $$v: not here"; continue; }; \
	  e=.cache/coverage-$$v; \
	  grep -sqxF '$(COVERAGE)' $$e/.made || { \
	    $$p -m venv --clear $$e && \
	    $$e/bin/pip install -q --disable-pip-version-check '$(COVERAGE)' && \
	    echo '$(COVERAGE)' >$$e/.made || exit 1; }; \
	  echo "Python $$v"; $$e/bin/coverage run -m unittest || exit 1; last=$$e; \
	done; \
	[ -n "$$last" ] || { echo "neither Python 3.9 nor 3.13 is here"; exit 1; }; \
	$$last/bin/coverage combine -q && \
	$$last/bin/coverage report --include=tinymcp/tinymcp.py && \
	$$last/bin/coverage report

# Requirement rows that no test names.
rows:
	@$(PYTHON) tests/rows.py

# The official JSON Schema test suite, draft 2020-12.
schema-suite:
	$(PYTHON) tests/schema_suite.py

# The official MCP conformance suite.
conformance:
	$(PYTHON) tests/conformance/run.py

# Real clients in their own environments; the short form is what CI runs.
interop:
	$(PYTHON) tests/interop/run.py
	$(PYTHON) tests/interop/client_run.py

interop-short:
	$(PYTHON) tests/interop/run.py --short

# Any bytes on stdio and HTTP, with hypothesis; the plain tests hold a short form.
fuzz:
	$(PYTHON) tests/fuzz/run.py

# Does a server that is abused for long keep its size? CI runs the short form.
soak:
	$(PYTHON) tests/soak.py

soak-short:
	$(PYTHON) tests/soak.py --seconds 60

clean:
	rm -rf .cache .coverage .coverage.* .mypy_cache .ruff_cache build dist *.egg-info

# Three instances behind nginx and HAProxy (Debian: nginx-light, haproxy).
proxies:
	$(PYTHON) tests/interop/proxies.py

# What it costs: beside bare references; PEERS=--peers installs and measures others too.
bench:
	$(PYTHON) -m benchmarks $(PEERS)

# Instruction counts; fails when one grew by more than 5 % on the same interpreter.
counts:
	$(PYTHON) -m benchmarks counts --check

# The board example with 48 MB, one processor and a read-only root (needs root).
tiny:
	$(PYTHON) -m benchmarks.tiny

# The test suite on 32-bit ARM under qemu-user (needs root, debootstrap, qemu).
arm:
	benchmarks/arm.sh
