.DEFAULT_GOAL := help
BIN := .venv/bin

# Without a bytecode cache, a short test run spends most of its time compiling.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(if $(THOROUGH),HYPOTHESIS_PROFILE=thorough) $(BIN)/python -m pytest -n auto $(if $(THOROUGH),--timeout 3600)
COMPOSE ?= docker compose
COMPOSE_BUILD ?= docker build -f deploy/Dockerfile
COMPILE := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --upgrade \
	--no-header --no-emit-index-url --no-emit-find-links --no-emit-package spark-jetstream

.PHONY: help setup containers dashboards up down run console wheel js-client browser-test screenshots test test-unit conformance chaos regions check format schemathesis soak generate docs site lock bench bench-pipeline clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 12

setup: ## Make .venv with everything that development needs (other targets do this by themselves)
	@sh scripts/setup dev

run: ## Start Postroad on 127.0.0.1:8080 (POSTROAD_PORT), engine included; Ctrl-C stops it
	@sh scripts/setup run
	@sh scripts/setup-java --optional
	@sh scripts/build-console --optional
	@exec $(BIN)/postroad up

console: setup ## Build the web console, which `make run` and the browser tests do by themselves
	@sh scripts/build-console
	@sh scripts/check-console

wheel: setup ## Build the wheel into dist/, with the web console
	@sh scripts/build-wheel

js-client: setup ## Build the JavaScript client into clients/js/dist, which its tests do by themselves
	@sh scripts/build-js-client

test: setup ## Run every test, or those of one folder (PKG=queues) or tier (TIER=unit|engine|browser|spark|slow); THOROUGH=1 tries more examples
	@sh scripts/setup-java
	@sh scripts/setup-node
	@sh scripts/setup-strace
	@sh scripts/setup-netns
	@sh scripts/setup-prometheus
	@sh scripts/setup-rabbitmq
	@sh scripts/setup-recipes
	@sh scripts/setup-browser
	@sh scripts/build-console
	@sh scripts/build-js-client
	@$(PYTEST) $(if $(TIER),-m $(TIER)) $(if $(PKG),$(wildcard tests/$(PKG) packages/$(PKG)))

test-unit: setup ## Run the tests that start no process: seconds (PKG=queues)
	@$(BIN)/python -m pytest -m unit --forks 3 $(if $(PKG),$(wildcard tests/$(PKG) packages/$(PKG)))

browser-test: setup ## The console in a browser, on an installation of its own
	@sh scripts/setup-browser
	@sh scripts/build-console
	@sh scripts/build-js-client
	@$(PYTEST) -m browser tests/browser

screenshots: setup ## Make the screenshots of docs/console.md from demonstration traffic
	@sh scripts/setup-browser
	@sh scripts/build-console
	@$(BIN)/python -m tests.browser.screenshots

conformance: setup ## The public Durable Streams suite and the official client
	@sh scripts/setup-node
	@$(BIN)/python -m tests.conformance.run

chaos: setup ## Kill, pause and restart at random while clients work, then check every promise (SECONDS=60 SEED=… SYNC=group CLUSTER=1 PARTITIONS=1)
	@$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(if $(SYNC),--sync $(SYNC)) $(if $(CLUSTER),--cluster) $(if $(PARTITIONS),--partitions)

regions: setup ## 27 tagged servers and gateways in three regions; as root with latency and cut links (KEEP=1 LOOPBACK=1)
	@sh scripts/setup-netns
	@$(BIN)/python -m tests.regions $(if $(KEEP),--keep) $(if $(LOOPBACK),--loopback)

check: setup ## Format, lint, types and import rules
	@$(BIN)/ruff format --check -q . && $(BIN)/ruff check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/generate_client.py --check
	@$(BIN)/python scripts/generate_aws_models.py --check
	@$(BIN)/python scripts/write_docs.py --check
	@$(BIN)/python scripts/write_dashboards.py --check
	@sh scripts/check-console

up: setup ## Start a whole installation in containers (COMPOSE="docker compose"): builds the images, writes deploy/secrets once
	@test -f deploy/secrets/nats-auth.conf || $(BIN)/postroad init --out deploy/secrets
	@$(COMPOSE_BUILD) --target postroad -t postroad:latest . && $(COMPOSE_BUILD) --target postroad-pipeline -t postroad-pipeline:latest .
	@$(COMPOSE) -f deploy/compose.yaml up -d

down: ## Stop the containers of `make up`; volumes and secrets stay
	@$(COMPOSE) -f deploy/compose.yaml down

containers: setup ## Build the images, run deploy/compose.yaml with podman, kill and replace every container under load: five minutes, as root; installs podman
	@sh scripts/setup-podman
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.deployment.containers

dashboards: setup ## Write the alert rules and dashboards of deploy/ from the list in src/postroad/monitoring
	@$(BIN)/python scripts/write_dashboards.py

format: setup ## Put the code into shape
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

schemathesis: setup ## Try the whole API with requests made from its description, for minutes (EXAMPLES=500)
	@$(BIN)/python -m tests.http.schemathesis_run --examples $(or $(EXAMPLES),500)

soak: setup ## Load of all kinds at a steady pace, for minutes; tells whether memory or descriptors grow (SECONDS=600)
	@$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),600)

generate: setup ## Write the SDK's and the CLI's modules that follow from the route table, and the tables of AWS operations
	@$(BIN)/python scripts/generate_client.py
	@$(BIN)/python scripts/generate_aws_models.py

docs: setup ## Write the reference pages that come from the code
	@$(BIN)/python scripts/write_docs.py

site: setup ## Build the documentation into build/site, after its examples ran as tests (EXAMPLES=0 skips them): search, versions, no dead link
	@$(if $(filter 0,$(EXAMPLES)),,$(PYTEST) -q tests/test_examples.py tests/examples)
	@$(BIN)/python scripts/build_site.py

lock: setup ## Resolve the dependencies again: requirements.lock to run Postroad, requirements-dev.lock for the rest
	@$(COMPILE) pyproject.toml --extra pipeline --extra console --extra rabbitmq --group build -o requirements.lock
	@$(COMPILE) --group dev --constraints requirements.lock -o requirements-dev.lock

bench-pipeline: setup ## Measure the data source, the ingest and the reports beside DuckDB and Polars
	@sh scripts/setup-java
	@$(BIN)/python -m benchmarks.pipeline

bench: setup ## Measure Postroad beside its peers (installs them); writes benchmarks/results.md after 20 to 25 minutes; about an hour in all
	@$(BIN)/python -m benchmarks.compare
	@$(BIN)/python -m benchmarks.live
	@$(BIN)/python -m benchmarks.buckets
	@$(BIN)/python -m benchmarks.push
	@$(BIN)/python -m benchmarks.many_subscriptions
	@$(BIN)/python -m benchmarks.dead_endpoints
	@$(BIN)/python -m benchmarks.sns
	@$(BIN)/python -m benchmarks.sqs
	@$(BIN)/python -m benchmarks.aws_peers
	@$(BIN)/python -m benchmarks.rabbitmq

clean: ## Remove .venv and caches (never var/)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build packages/*/build tests/conformance/node_modules console/node_modules clients/js/node_modules clients/js/dist src/postroad/console/static
