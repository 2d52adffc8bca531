package main

import (
	"context"
	"flag"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// growthFlags are the flags of a bench of many pipes.
type growthFlags struct {
	pipes, processes countList
	all              *flag.FlagSet // of the command
}

func (g *growthFlags) flags(fs *flag.FlagSet) {
	g.all = fs
	fs.Var(&g.pipes, "pipes", "`list` of numbers of pipes to a second process, such as 1,10,100,1000: measure their cost")
	fs.Var(&g.processes, "processes", "`list` of numbers of processes, such as 2,4,8, one with a pipe to each of the others: measure the cost")
}

// wanted reports whether the cost of many pipes is to be measured, in place of paths.
func (g *growthFlags) wanted() bool { return len(g.pipes)+len(g.processes) > 0 }

// growthOptions are the other flags of bench that apply to a bench of many pipes.
var growthOptions = []string{"pipes", "processes", "transport", "peer", "pairs", "count", "svg"}

const (
	defaultGrowthTrips = 5000
	growthTripTime     = time.Second     // for round trips of a kind
	growthIdle         = 2 * time.Second // for which processes are observed
	growthDeadline     = time.Minute     // for one library and one number
)

// grow measures the cost of many pipes for the numbers in b.growth, prints it and draws it. The error is a
// *usageError if a flag is invalid or does not apply, that of bench.CompareGrowth or of a file, or
// errInterrupted.
func (b *benchmark) grow(ctx context.Context, s streams) error {
	specs, err := b.growthSpecs()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	var peer bench.Grower
	if b.peer != "" {
		var library bench.Libtensorpipe
		if err := library.Build(); err != nil {
			return err
		}
		peer = library
	} else {
		b.pairs = 1
	}
	svg, err := openOutput("-svg", b.svg)
	if err != nil {
		return err
	}
	self := bench.Go{Child: bench.Program{Path: program, Args: []string{benchChildName}}, Catalog: benchCatalog}
	report := &growthReport{out: s.out, byProcesses: len(b.growth.processes) > 0, pairs: b.pairs, compared: peer != nil}
	for _, spec := range specs {
		c, err := bench.CompareGrowth(ctx, self, peer, spec, b.pairs)
		if err != nil {
			svg.discard()
			return interrupted(ctx, withoutPrefix(err))
		}
		report.add(spec, c)
	}
	return svg.write(report.chart())
}

// growthSpecs returns one spec for each transport and number, in the order in which they are measured.
// The error is a *usageError.
func (b *benchmark) growthSpecs() (specs []bench.GrowthSpec, err error) {
	b.growth.all.Visit(func(f *flag.Flag) {
		if !slices.Contains(growthOptions, f.Name) {
			err = usageErrorf("-%s does not apply with -pipes and -processes", f.Name)
		}
	})
	g := &b.growth
	switch peer := (bench.Libtensorpipe{}).Name(); {
	case err != nil:
		return nil, err
	case len(g.pipes) > 0 && len(g.processes) > 0:
		return nil, usageErrorf("-pipes and -processes: want one of the two")
	case b.peer != "" && b.peer != peer:
		return nil, usageErrorf("-peer %q: want %s", b.peer, peer)
	case b.peer == "" && b.pairs != defaultPairs:
		return nil, usageErrorf("-pairs is for runs with -peer")
	case b.pairs < 1 || b.pairs > maxCount:
		return nil, usageErrorf("-pairs %d: want 1 to %d", b.pairs, maxCount)
	}
	transports := []string{"uv", shm.Name}
	if b.transports != auto {
		transports = strings.Split(b.transports, ",")
	}
	for _, t := range transports {
		for _, n := range append(g.pipes, g.processes...) {
			s := bench.GrowthSpec{
				Transport: t, Processes: 2, Pipes: n, Trips: defaultGrowthTrips,
				TripTime: growthTripTime, Idle: growthIdle, Deadline: growthDeadline,
			}
			if b.count > 0 {
				s.Trips, s.Idle = b.count, min(growthIdle, time.Duration(b.count)*time.Millisecond)
			}
			if len(g.processes) > 0 {
				s.Processes, s.Pipes = n, 1
			}
			if err := s.Check(); err != nil {
				return nil, usageErrorf("%w", withoutPrefix(err))
			}
			specs = append(specs, s)
		}
	}
	return specs, nil
}

// countList is a flag.Value for a list of numbers, such as 1,10,100.
type countList []int

// Set replaces the list by the numbers in text, which are separated by commas. The error is that of the
// first number that is invalid.
func (l *countList) Set(text string) error {
	*l = nil
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > maxCount {
			return usageErrorf("want numbers from 1 to %d, separated by commas", maxCount)
		}
		*l = append(*l, n)
	}
	return nil
}

// String returns the numbers in the syntax of Set.
func (l *countList) String() string {
	var parts []string
	for _, n := range *l {
		parts = append(parts, strconv.Itoa(n))
	}
	return strings.Join(parts, ",")
}
