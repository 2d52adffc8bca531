# make help lists the targets.
.DEFAULT_GOAL := help
TMP := .tmp

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' Makefile

.PHONY: test
test: ## run the tests
	go test ./...

.PHONY: race
race: ## run the tests under the race detector
	go test -race ./...

.PHONY: invariants
invariants: ## run the tests with checks that panic on misuse
	go test -tags invariants ./...

.PHONY: lint
lint: ## gofmt, vet, staticcheck and the rules of internal/lint
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	go vet ./...
	go vet -tags invariants ./...
	GOOS=darwin go vet ./...
	@mkdir -p $(TMP)
	go build -modfile=internal/tools/go.mod -o $(TMP)/staticcheck honnef.co/go/tools/cmd/staticcheck
	$(TMP)/staticcheck ./...
	$(TMP)/staticcheck -tags invariants ./...
	GOOS=darwin $(TMP)/staticcheck ./...
	go test ./internal/lint

.PHONY: fuzz
fuzz: ## run one fuzz target: make fuzz PKG=./internal/nop FUNC=FuzzDecode TIME=1m
	go test -run '^$$' -fuzz '^$(FUNC)$$' -fuzztime $(or $(TIME),1m) $(PKG)

.PHONY: interop
interop: ## exchange messages with the C++ library (needs g++ and libtensorpipe-dev)
	TENSORPIPE_REQUIRE_INTEROP=1 go test -v -count=1 ./internal/interop/...

.PHONY: bench
bench: ## run the benchmarks
	go test -run '^$$' -bench . -benchmem ./...

.PHONY: cover
cover: ## measure the test coverage
	@mkdir -p $(TMP)
	go test -coverpkg ./... -coverprofile $(TMP)/cover.out ./...
	go tool cover -func $(TMP)/cover.out | tail -n 1

.PHONY: ci
ci: ## run the gate
	.ci/run
