# Entry points for people and CI. The work is in the scripts of hack/ and in cargo; `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# All scripts of one call share one clock, see hack/lib.sh.
ifndef STARTED
export STARTED := $(shell date +%s)
endif

.PHONY: help demo demo-down cluster cluster-down kubeconfig image images generate lint unit integration smoke test e2e bench

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

demo: ## three PostgreSQL instances on a cluster of their own, and how to go on
	@hack/demo.sh up

demo-down: ## remove the demo, keep the cluster
	@hack/demo.sh down

cluster: ## a kind cluster of three nodes, with storage and a registry
	@hack/cluster.sh up

cluster-down: ## remove that cluster; what was built stays cached
	@hack/cluster.sh down

kubeconfig: ## print the path of the cluster's kubeconfig
	@hack/cluster.sh kubeconfig

image: ## the operator's image, in the registry beside the nodes
	@hack/image.sh

images: ## every other image: nodes, registry, PostgreSQL 15, 17 and 18
	@hack/images.sh all
	@hack/publish.sh

generate: ## write what is generated: CRDs, manifests, API reference
	@cargo run --locked --quiet --package postgres-operator --bin bundle -- write

lint: ## formatting, clippy, shellcheck, cargo-deny, drift of generated files
	@hack/lint.sh

unit: ## rings 1 and 2: pure code and a scripted API
	@hack/test.sh unit

integration: ## rings 3 and 4: a real API server, PostgreSQL in containers
	@hack/images.sh all
	@hack/test.sh ring3:: ring4::

smoke: cluster images image ## ring 5, what every change must pass: the kind cluster
	@hack/test.sh ring5::

# In this order a mistake in the code shows before an hour of building.
test: lint unit cluster images image integration smoke ## everything, as CI runs it
	@hack/test.sh done

e2e: smoke ## ring 5 as a whole

bench: cluster images image ## measure the promised numbers
	@hack/test.sh bench::
