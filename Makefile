# Waybill: one command each. ARGS are passed on: make demo ARGS=--exit, make test ARGS="-k wal".
.DEFAULT_GOAL := help
.PHONY: help demo down quick test lint format lock venv java trino celery consul oldest-airflow chromium bench-processing bench-producer bench-parking bench-replay-latency bench-tracker bench-destinations bench-cli bench-airflow bench-clusters bench-ingestion bench-shapes faults-producer faults-parking faults-tracker faults-destinations faults-rollback faults-processing faults-standalone faults-airflow faults-ingestion campaigns campaign-tests campaign-search record pictures
SHELL := /bin/bash

PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV_VERSION := 0.13.8
BIN := .venv/bin
STAMP := .venv/.installed
OLDEST := .waybill/oldest-airflow
# Compiling what is installed takes uv some seconds; beside others at work, minutes.
export UV_COMPILE_BYTECODE_TIMEOUT ?= 900
# Tests wait as long as they compute: two workers more than there are cores. Each has servers of its own.
WORKERS ?= $(shell echo $$(($$(nproc) + 2)))
# Tests start hundreds of Pythons: what one compiled the next ones need not.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
TOGETHER := -n $(WORKERS) --maxprocesses 5 --dist loadfile --no-loadscope-reorder -m "not campaign"
COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 20

demo: venv java  ## install what is missing, start the stack, run the main job (ARGS=--exit: then stop)
	$(BIN)/waybill demo $(ARGS)

down:  ## stop every process that was started here, and no other (ARGS=--wipe: delete the data too)
	@if [ -x $(BIN)/waybill ]; then $(BIN)/waybill down $(ARGS); else echo "nothing was started here"; fi

quick: venv  ## tests that need no server and no Java, in less than three minutes
	$(PYTEST) $(TOGETHER) -m "not campaign and not serves" tests/unit tests/dags

test: venv java chromium  ## the tests of each commit, with the real servers (ARGS=<paths or options>: these, one by one)
	$(PYTEST) $(or $(ARGS),$(TOGETHER) tests)

lint: venv  ## style, format, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=plugins $(BIN)/lint-imports

format: venv  ## rewrite the code in the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

bench-processing: venv java  ## events/s through processing and loading
	$(BIN)/python -m tests.benchmarks.processing $(ARGS)

bench-producer: venv java  ## the lossless producer against the bare one: messages/s, CPU, appends, bytes (QUICK=1: less than a minute)
	$(BIN)/python -m tests.benchmarks.producer $(ARGS)

bench-parking: venv java  ## everything fails, 100,000 parked partitions; the tracker at 5,000,000 segments; replays (QUICK=1: less than a minute)
	$(BIN)/python -m tests.benchmarks.parking $(ARGS)

bench-replay-latency: venv java  ## live p95 latency without and with a replay beside it (QUICK=1: less than a minute; GOVERNED=0: what it would be)
	$(BIN)/python -m tests.benchmarks.replay_latency $(ARGS)

bench-tracker: venv java  ## the event tracker: what traces cost, files/s, look-ups among 100,000,000 traces, queries over 1,000,000 batches (QUICK=1: less than a minute)
	$(BIN)/python -m tests.benchmarks.tracker $(ARGS)

bench-destinations: venv  ## rows/s into PostgreSQL, DuckDB and Delta against the same by hand (QUICK=1: less than a minute)
	$(BIN)/python -m tests.benchmarks.destinations $(ARGS)

bench-cli: venv java  ## CPU seconds of waybill --help, pipelines check, parked list, balance and trail (QUICK=1: less than a minute)
	$(BIN)/python -m tests.benchmarks.cli $(ARGS)

bench-airflow: venv  ## Waybill's DAGs in Airflow at 5,000 pipelines: what a file, a task's parse take; serialised alike; campaigns: freezing, launches a second against the REST API; what an idle stack costs (QUICK=1: less than five minutes)
	$(BIN)/python -m tests.benchmarks.airflow $(ARGS)

bench-clusters: venv  ## teams packed into virtual clusters, simulated: recovery from a storm, moves, reversals (QUICK=1: less than a minute)
	$(BIN)/python -m tests.benchmarks.clusters $(ARGS)

bench-ingestion: venv java  ## what ingestion takes in: the HTTP collector; sql, files, dlt, cdc against the same source read without us; memory; capacity that follows the work (PARTS=<names>; QUICK=1: less than a minute)
	$(BIN)/python -m tests.benchmarks.ingestion $(ARGS)

bench-shapes: venv  ## CPU an event in processing, whatever the shape of the data: names, failing values, numbers, deletes, columns, sizes; no servers (ONLY=<shapes>; QUICK=1: less than a minute)
	$(BIN)/python -m tests.benchmarks.shapes $(ARGS)

faults-producer: venv java  ## 200 SIGKILLs of a producing process; nothing may be lost (KILLS=<n>; QUICK=1: a few)
	$(BIN)/python -m tests.faults.producer_kills $(ARGS)

faults-parking: venv java  ## 50 SIGKILLs of a replay, 1,000 random interleavings (KILLS=<n>, PLAYS=<n>; QUICK=1: a few)
	$(BIN)/python -m tests.faults.parking_campaign $(ARGS)

faults-tracker: venv java  ## 40 events dropped and 40 doubled among 1,000,000: the auditor must name all (EVENTS=<n>; QUICK=1: 100,000)
	$(BIN)/python -m tests.faults.tracker_campaign $(ARGS)

faults-destinations: venv java  ## 20 SIGKILLs of a loader for each destination that is run for real (KILLS=<n>; QUICK=1: 4)
	KILLS=$${KILLS:-$(if $(QUICK),4,20)} $(BIN)/python -m pytest -q -s --timeout 3000 --figures tests/integration/destinations/test_kills.py $(ARGS)

faults-processing: venv java  ## two clusters process and load: 50 moves of teams with their destinations, 12 growths of topics, SIGKILLs of drivers at each step of a batch and of a load, of workers, user code, the coordinator; late awakenings; 200 poison events (GROWTHS=<n>, KILLS=<n>, …; QUICK=1: a few)
	$(BIN)/python -m tests.faults.processing_campaign $(ARGS)

faults-standalone: venv java  ## a Spark master and two workers: two clusters process and load; workers killed, a cluster and its destinations moved, under load; tables exact (ROUNDS=<n>; QUICK=1: once each)
	$(BIN)/python -m tests.faults.standalone_campaign $(ARGS)

faults-airflow: venv java  ## 200 replays of a campaign on a real Airflow, by LocalExecutor and by CeleryExecutor with Redis; scheduler, triggerer, API server, workers killed and frozen (REPLAYS=<n>, KILLS=<n>; QUICK=1: 16, LocalExecutor)
	$(BIN)/python -m tests.faults.airflow_campaign $(ARGS)

faults-ingestion: venv java  ## each kind of connector killed 20 times while it ingests, the collector under load, PostgreSQL under a slot, MariaDB away, nodes of Celery; nothing lost or doubled (PARTS=<names>, KILLS=<n>; QUICK=1: a few)
	$(BIN)/python -m tests.faults.ingestion_campaign $(ARGS)

faults-rollback: venv java  ## a cut log, a restored warehouse, lost objects, a lost node, a clock an hour back, under load (EVENTS=<n>, JOBS_S=<n>; QUICK=1: a small load)
	$(BIN)/python -m tests.faults.rollback_campaign $(ARGS)

campaigns: venv java  ## all that make test leaves out, in sizes that take 75 minutes on two cores; a table at the end (CAMPAIGNS=<parts>, SEED=<n>, QUICK=1)
	$(BIN)/python -m tests.campaigns

campaign-tests: venv java chromium  ## the tests marked campaign: long kills and outages
	$(PYTEST) $(TOGETHER) -m campaign --figures tests --deselect tests/faults/test_rollback_campaign.py --deselect tests/faults/test_tracker_campaign.py --deselect tests/faults/test_processing_campaign.py $(ARGS)

campaign-search: venv  ## every property with many new random examples (SEED=<n>, PRODUCER_MODEL_EXAMPLES=<n>)
	HYPOTHESIS_PROFILE=search PRODUCER_MODEL_EXAMPLES=$${PRODUCER_MODEL_EXAMPLES:-1000} \
		$(PYTEST) $(TOGETHER) -m hypothesis --figures tests/unit $(if $(SEED),--hypothesis-seed=$(SEED)) $(ARGS)

record: venv  ## keep what a benchmark printed (make bench-x | make record BENCH=bench-x NOTE="…"): docs/performance.md
	@$(BIN)/python -m tests.support.performance_page

pictures: venv java chromium  ## take the pictures of docs/images anew, of a real stack with the demo's data
	$(BIN)/python -m tests.pictures

lock: venv  ## compile the pins anew
	$(COMPILE) requirements.in --override requirements-overrides.txt -o requirements.txt
	$(COMPILE) requirements-dev.in -o requirements-dev.txt
	$(COMPILE) tests/support/celery.in --override requirements-overrides.txt -o tests/support/celery.txt \
		$$(sed -nE 's/^([A-Za-z0-9._-]+)==.*/--no-emit-package \1/p' requirements.txt)
	sed -i '/^# The following packages were excluded/,$$d' tests/support/celery.txt

venv: $(STAMP)  ## .venv with exactly the pinned packages

$(STAMP): requirements.txt requirements-dev.txt pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: apt-get install -y python3.11 python3.11-venv, or make PYTHON=<path>"; exit 1; }
	@[ -x $(BIN)/uv ] || $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv \
		|| { rm -rf .venv; echo "Python's venv is missing: apt-get install -y python3-venv"; exit 1; }
	@$(BIN)/uv --version 2>/dev/null | grep -q "^uv $(UV_VERSION)" \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.txt requirements-dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q include plugins dags spark_jobs tests
	@touch $@

java: venv  ## Java 17 or newer, from the system's packages where that is possible
	@$(BIN)/python -m waybill.stack.java || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq \
		&& { apt-get install -y openjdk-17-jre-headless || apt-get install -y openjdk-21-jre-headless; } \
		&& $(BIN)/python -m waybill.stack.java; }

trino: venv java  ## Trino 476 with a Java 25 into .waybill/trino (500 MB), for the contract test of Athena's SQL
	$(BIN)/python -m tests.support.trino

consul: venv  ## Consul 1.14.11, built by Go from its module into .waybill/consul (160 MB; Go's own caches 4 GB), for the tests of thresholds
	$(BIN)/python -m tests.support.consul

celery: venv  ## Celery, Airflow's provider of it and a Redis into .waybill/celery (35 MB), for faults-airflow and faults-ingestion
	$(BIN)/python -m tests.support.real_airflow

oldest-airflow: venv  ## the tests of DAGs and pages with the oldest Airflow that Waybill runs on, in a venv of its own under .waybill
	@[ -x $(OLDEST)/bin/python ] || $(BIN)/uv venv --quiet --python $(BIN)/python $(OLDEST)
	$(BIN)/uv pip sync --quiet --python $(OLDEST)/bin/python --require-hashes requirements.txt requirements-dev.txt
	$(BIN)/uv pip install --quiet --python $(OLDEST)/bin/python --no-deps --require-hashes -r tests/support/oldest_airflow.txt
	$(BIN)/uv pip install --quiet --python $(OLDEST)/bin/python --no-deps --no-build-isolation --editable .
	$(OLDEST)/bin/python -m pytest --figures $(or $(ARGS),-m "not campaign" tests/dags tests/integration/test_web_*.py --ignore tests/dags/test_spark_cluster.py)

chromium:  ## Chromium for the browser tests, from the system's packages where that is possible; what is there is taken
	@command -v chromium-headless-shell chromium >/dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && export DEBIAN_FRONTEND=noninteractive \
		&& apt-get update -qq \
		&& { apt-get install -y --no-install-recommends chromium-headless-shell fonts-dejavu-core \
			|| apt-get install -y --no-install-recommends chromium fonts-dejavu-core; }; } \
		|| { echo "Chromium is missing, which the browser tests need: as root, apt-get install -y chromium-headless-shell"; exit 1; }
