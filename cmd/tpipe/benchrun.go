package main

import (
	"context"
	"errors"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/bench"
)

// benchReport takes the results of a bench as they come.
type benchReport interface {
	// measured is called with all that was found out about a spec.
	measured(spec bench.Spec, runs *bench.Comparison) error

	// absent is called once for a path that nobody has.
	absent(spec bench.Spec, why error) error
}

// benchRun measures specs.
type benchRun struct {
	self       bench.Subject
	peer       *bench.Libtensorpipe // nil: none
	pairs      int
	yardsticks []bench.Yardstick
	show       []benchReport

	missing string // the path that turned out last not to exist
}

func (r *benchRun) all(ctx context.Context, specs []bench.Spec) error {
	for _, spec := range specs {
		if pathName(spec) == r.missing {
			continue
		}
		if err := r.one(ctx, spec); err != nil {
			return interrupted(ctx, withoutPrefix(err))
		}
	}
	return nil
}

func (r *benchRun) one(ctx context.Context, spec bench.Spec) error {
	runs, err := r.compare(ctx, spec)
	if errors.Is(err, bench.ErrPath) {
		r.missing = pathName(spec)
		return r.report(func(to benchReport) error { return to.absent(spec, err) })
	}
	if err != nil {
		return err
	}
	return r.report(func(to benchReport) error { return to.measured(spec, runs) })
}

// compare measures both libraries, or the one that has the path.
func (r *benchRun) compare(ctx context.Context, spec bench.Spec) (*bench.Comparison, error) {
	if r.peer == nil {
		return bench.Compare(ctx, r.self, nil, spec, r.pairs, r.yardsticks...)
	}
	if why := r.peer.Check(spec); why != nil {
		runs, err := bench.Compare(ctx, r.self, nil, spec, r.pairs, r.yardsticks...)
		if err == nil {
			runs.WhyB = withoutPrefix(why)
		}
		return runs, err
	}
	return bench.Compare(ctx, r.self, *r.peer, spec, r.pairs, r.yardsticks...)
}

func (r *benchRun) report(to func(benchReport) error) error {
	for _, show := range r.show {
		if err := to(show); err != nil {
			return err
		}
	}
	return nil
}

// pathName is what a user asked for: a transport and a channel.
func pathName(s bench.Spec) string { return orAuto(s.Transports) + "/" + orAuto(s.Channels) }

func orAuto(list []string) string {
	if len(list) == 0 {
		return auto
	}
	return strings.Join(list, ",")
}
