# `make` alone prints the targets. Versions of CoreDNS, Caddy and caddy-l4 stand in go.mod and nowhere else.

BIN       ?= bin
# What both binaries say they are. git does not answer in a tarball or in somebody else's checkout.
VERSION   ?= $(or $(shell git describe --tags --always --dirty 2>/dev/null),devel)
FUZZTIME  ?= 1m
TESTFLAGS ?= -timeout 30m
# Of the images: what their names begin with, what they are built on, and files of this machine that go in.
IMAGES    ?= sandboxallow
BASE      ?= scratch
CA_ROOTS  ?= /etc/ssl/certs/ca-certificates.crt
MIMETYPES ?= /etc/mime.types

CADDY      := github.com/caddyserver/caddy/v2
COREMAIN   := github.com/coredns/coredns/coremain
# Only asked when caddy is built: go list is not free.
CADDY_VERSION = $(shell go list -m -f '{{.Version}}' $(CADDY))

# The tags are those of the binaries that we replace: of CoreDNS's own Makefile, and of xcaddy.
GOBUILD      := CGO_ENABLED=0 go build -trimpath -buildvcs=false
COREDNS_TAGS := grpcnotrace
CADDY_TAGS   := nobadger,nomysql,nopgx

.PHONY: help build coredns caddy images run test e2e fuzz bench lint generate clean

help: ## print this
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: coredns caddy ## static bin/coredns and bin/caddy

coredns: ## bin/coredns alone
	$(GOBUILD) -tags $(COREDNS_TAGS) -o $(BIN)/coredns \
	  -ldflags '-s -w -X $(COREMAIN).GitCommit=sandboxallow-$(VERSION)' ./builds/coredns

caddy: ## bin/caddy alone
	$(GOBUILD) -tags $(CADDY_TAGS) -o $(BIN)/caddy \
	  -ldflags '-s -w -X $(CADDY).CustomVersion=$(CADDY_VERSION)+sandboxallow.$(VERSION)' ./builds/caddy

images: build ## the container images of both, see builds/README.md
	$(GOBUILD) -ldflags '-s -w' -o $(BIN)/healthcheck ./builds/healthcheck
	@set -e; context=$$(mktemp -d); trap 'rm -rf "$$context"' EXIT; \
	for image in coredns caddy; do \
	  echo "== $(IMAGES)/$$image:$(VERSION)"; \
	  go run ./builds/rootfs -bin $(BIN) -ca $(CA_ROOTS) -types $(MIMETYPES) -base $(BASE) $$image >"$$context/rootfs.tar"; \
	  docker build -f builds/$$image/Dockerfile -t $(IMAGES)/$$image:$(VERSION) -t $(IMAGES)/$$image:latest \
	    --build-arg BASE=$(BASE) --build-arg VERSION=$(VERSION) --build-arg CADDY_VERSION=$(CADDY_VERSION) "$$context"; \
	done

run: build ## DNS on 127.0.0.1:1053, gateway on 127.0.0.1:8443, until Ctrl-C
	@BIN=$(BIN) sh builds/run.sh

test: ## every test; some need root, a network name space, the module proxy
	go test $(TESTFLAGS) ./...

e2e: ## real clients in network name spaces alone, verbose, as root
	go test -v -count=1 $(TESTFLAGS) ./test/e2e

fuzz: ## every fuzz target for FUZZTIME (1m) each
	@set -e; \
	for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -rn1 dirname | sort -u); do \
	  list=$$(go test -list '^Fuzz' $$dir); \
	  for target in $$(echo "$$list" | grep '^Fuzz'); do \
	    echo "== $$dir $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$dir; \
	  done; \
	done

bench: ## the figures of both binaries beside what people run; as root it installs Debian's packages of these
	go run ./test/bench -install

lint: ## gofmt, go vet, staticcheck, generated files
	@out=$$(gofmt -l .); [ -z "$$out" ] || { echo "gofmt -w is due for:"; echo "$$out"; exit 1; }
	go vet ./...
	go tool staticcheck ./...
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	sums() { find . \( -path ./.git -o -path ./$(BIN) \) -prune -o -type f -print0 | sort -z | xargs -0 sha256sum; }; \
	sums >"$$tmp/before"; go generate ./...; sums >"$$tmp/after"; \
	diff "$$tmp/before" "$$tmp/after" || { echo "go generate changed these files, commit what it writes"; exit 1; }

generate: ## what go generate writes
	go generate ./...

clean: ## remove bin
	rm -rf $(BIN)
