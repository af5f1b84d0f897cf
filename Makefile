# Every target prepares what it needs. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo pictures test cluster-test sim fmt lint types pyright proto lock bench bench-backtest bench-cluster bench-spark soak soak-cluster soak-spark soak-tables spark spark-4.2 interop fuzz bench-rest clean

help:  ## list the targets
	@grep -hE '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9.-]+):.*## /\1|/' | awk -F'|' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make .venv with the locked packages and the anabranch command

$(STAMP): requirements/dev.txt pyproject.toml bin/setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bin/setup

demo: setup  ## a million clicks on a topic that splits and merges, Spark reading it, a verified report (DEMO="--events 100000"; BROKERS=3)
	@bin/jre || echo "demo: without Java, Anabranch's own consumer reads instead of Spark"
	@VENV="$(VENV)" bin/demo $(if $(BROKERS),--brokers $(BROKERS)) $(DEMO)

test: setup  ## format, types and tests (a Java runtime for Spark and a Chromium for the page are installed where missing and possible)
	@bin/chromium || echo "test: no Chromium, skipping the tests of the page"
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -q -n 2 --dist loadfile
	@bin/jre || echo "test: no Java, skipping the tests of Spark"
	@$(BIN)/pytest -q tests/spark -m spark -n 2 --dist loadfile

cluster-test: setup  ## what needs real ZooKeeper servers and MinIO (a JRE, Debian's package zookeeper, Go; installed where possible; PYTEST="-k medium")
	@bin/zookeeper
	@bin/minio $(BIN)/pytest -q -m "zookeeper or objects" tests/contract tests/faults $(PYTEST)
	@bin/jre
	@bin/minio $(BIN)/pytest -q -m "spark and objects" tests/spark $(PYTEST) || [ $$? -eq 5 ]  # 5: PYTEST chose none of these

sim: setup  ## whole clusters on one seed, with every kind of fault (SEED=7 RUNS=100)
	@$(BIN)/anabranch simulate --seed $(or $(SEED),0) --runs $(or $(RUNS),1)

pictures: setup  ## docs/images/*.png, from a real run of the demo
	@bin/jre
	@bin/chromium
	@PYTHONPATH=tests $(BIN)/python -m browser.pictures docs/images

bench: setup  ## ours, the real Pulsar and Kafka in one run (needs a JDK 17, one of 21 or later, Maven; PEERS_DIR, BENCH="--quick")
	@bench/run $(BENCH)

bench-backtest: setup  ## how long backtests of up to 100,000 topics take (about 15 minutes)
	@bin/jre
	@$(BIN)/python -m bench.backtest

bench-cluster: setup  ## several brokers beside one: CPU, latency, hand-overs, kills, restarts (25 minutes; BENCH="--only handover")
	@$(BIN)/python -m bench.cluster $(BENCH)

bench-spark: setup  ## our Spark source and sink beside Kafka's and Parquet (needs Kafka in PEERS_DIR; 20 minutes, 25 GB)
	@bin/jre
	@$(BIN)/python -m bench.spark --peers "$(PEERS_DIR)" --out docs/benchmarks/spark $(BENCH)

soak-spark: setup  ## kill drivers, executors and brokers under a Spark query 20 times each (half an hour; SOAK="--seed 7")
	@bin/jre
	@$(BIN)/python -m soak spark --kills 20 $(SOAK)

soak-tables: setup  ## kill writers, broker and reader of a topic that is kept as a table 20 times each (about 5 minutes; SOAK="--seed 7")
	@$(BIN)/python -m soak tables --kills 20 $(SOAK)

soak: setup  ## kill -9 fifty times under load and check every history (about 15 minutes; SOAK="--rounds 5")
	@$(BIN)/python -m soak kill $(SOAK)

soak-cluster: setup  ## kill, pause, stop and move single brokers of several under load (about 8 minutes; SOAK="--seconds 60")
	@$(BIN)/python -m soak cluster $(SOAK)

spark: setup  ## only the tests of Spark, on a real session (BROKERS=3)
	@bin/jre
	@$(BIN)/pytest -q tests/spark -m spark -n 2 --dist loadfile

spark-4.2: setup  ## source, sink, pipelines and a Delta table on the release before (fetches PySpark 4.2 into .spark-4.2, once, and Delta's jars)
	@bin/jre
	@[ -d .spark-4.2/pyspark ] || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	  --target .spark-4.2 -r requirements/spark-4.2.txt
	@DELTA_PACKAGE=io.delta:delta-spark_4.2_2.13:4.4.0 $(BIN)/pytest -q tests/spark/test_release_before.py -m spark

fuzz: setup  ## a hostile client (30 minutes), random bytes for the decoders, requests for the REST (10 each; FUZZ_SECONDS)
	@PYTHONPATH=tests $(BIN)/python -m hostile $(HOSTILE)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/fuzz.txt
	@PYTHONPATH=tests $(BIN)/python tests/fuzz/decoders.py
	@PYTHONPATH=tests $(BIN)/python tests/fuzz/rest.py

bench-rest: setup  ## how fast the admin REST answers beside a producer at full speed (1 minute)
	@$(BIN)/python -m bench.rest $(BENCH)

interop: setup  ## Pulsar's Java client against a broker (needs a JDK 17 or later and Maven; BROKERS=3, PULSAR_CHECKOUT)
	@$(BIN)/pytest -q tests/interop -m java --override-ini addopts=""

fmt: setup  ## format and fix what can be fixed
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: setup  ## ruff
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: setup  ## mypy --strict
	@$(BIN)/mypy

pyright: setup  ## what pyright says of a program that uses all of the client (installs basedpyright into .venv, 300 MB)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/pyright.txt
	@$(BIN)/pytest -q tests/unit/client/test_face.py -k pyright

proto: setup  ## regenerate the protocol code from src/anabranch/wire/pulsar.proto
	@$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/anabranch/wire/pulsar.proto
	@sed -i.old "/^ *None: .*Schema.Type/d" src/anabranch/wire/pulsar_pb2.pyi && rm src/anabranch/wire/pulsar_pb2.pyi.old  # no valid name in Python

lock: setup  ## recompile requirements/*.txt from requirements/*.in (needs uv)
	@for f in runtime dev bench fuzz pyright zookeeper; do uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header requirements/$$f.in -o requirements/$$f.txt; done
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-deps \
	  --no-emit-index-url --no-header requirements/spark-4.2.in -o requirements/spark-4.2.txt  # beside dev.txt, which has what it needs

clean:  ## remove the virtual environment and caches
	@rm -rf $(VENV) .spark-4.2 .mypy_cache .ruff_cache .pytest_cache .hypothesis
