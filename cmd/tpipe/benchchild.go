package main

import (
	"context"
	"flag"

	"github.com/tensorpipe-go/tensorpipe/bench"
)

// benchChild is the second process of a bench.
type benchChild struct{}

const benchChildName = "bench-child"

func benchChildEntry() entry {
	return entry{
		name:    benchChildName,
		summary: "the second process of a bench",
		help:    "Answers what tpipe bench sends, which starts it.",
		hidden:  true,
		make:    func() command { return benchChild{} },
	}
}

func (benchChild) flags(*flag.FlagSet) {}

func (benchChild) run(ctx context.Context, s streams) error {
	return bench.RunChild(ctx, s.in, s.out, benchCatalog)
}
