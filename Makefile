.DEFAULT_GOAL := help
BIN := .venv/bin

.PHONY: help setup run test conformance chaos check format schemathesis soak generate docs lock bench bench-pipeline clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 12

setup: ## Make .venv with everything that is needed (run and test do this by themselves)
	@sh scripts/setup

run: setup ## Start Postroad on 127.0.0.1:8080 (POSTROAD_PORT), engine included; Ctrl-C stops it
	@sh scripts/setup-java --optional
	@exec $(BIN)/postroad up

test: setup ## Run every test
	@sh scripts/setup-java
	@sh scripts/setup-node
	@sh scripts/setup-strace
	@$(BIN)/python -m pytest -n auto --dist loadgroup -m "not alone"
	@$(BIN)/python -m pytest -m alone

conformance: setup ## The public Durable Streams suite and the official client (installs Node.js from Debian if it is missing)
	@sh scripts/setup-node
	@$(BIN)/python -m tests.conformance.run

chaos: setup ## Kill, pause and restart at random while clients work, then check every promise (SECONDS=60 SEED=… CLUSTER=1)
	@$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(if $(CLUSTER),--cluster)

check: setup ## Format, lint, types and import rules
	@$(BIN)/ruff format --check -q . && $(BIN)/ruff check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/generate_client.py --check
	@$(BIN)/python scripts/write_docs.py --check

format: setup ## Put the code into shape
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

schemathesis: setup ## Try the whole API with requests made from its description, for minutes (EXAMPLES=500)
	@$(BIN)/python -m tests.http.schemathesis_run --examples $(or $(EXAMPLES),500)

soak: setup ## Load of all kinds at a steady pace, for minutes; tells whether memory or descriptors grow (SECONDS=600)
	@$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),600)

generate: setup ## Write the SDK's and the CLI's modules that follow from the route table
	@$(BIN)/python scripts/generate_client.py

docs: setup ## Write the reference pages that come from the code
	@$(BIN)/python scripts/write_docs.py

lock: setup ## Resolve the dependencies anew into requirements.lock
	@$(BIN)/uv pip compile -q pyproject.toml --extra dev --extra pipeline --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-emit-package spark-jetstream --no-header --upgrade -o requirements.lock

bench-pipeline: setup ## Measure the data source, the ingest and the reports beside DuckDB and Polars
	@sh scripts/setup-java
	@$(BIN)/python -m benchmarks.pipeline

bench: setup ## Measure Postroad beside its peers (installs them); writes benchmarks/results.md: ten minutes
	@$(BIN)/python -m benchmarks.compare

clean: ## Remove .venv and caches (never var/)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build packages/*/build tests/conformance/node_modules
