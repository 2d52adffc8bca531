package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// benchmark is the command that measures paths between two processes.
type benchmark struct {
	transports, channels string
	lanes                int
	anyTracer            bool
	dialect              string
	buffers              string
	compression          pipe.Compression
	data                 string
	sizes                sizeList
	depth, count, pairs  int
	named                namedFlag
	spin                 bool
	peer                 string
	peerTransport        string
	peerChannel          string
	json                 bool
	svg                  string
}

func benchEntry() entry {
	return entry{
		name:    "bench",
		usage:   "[flags]",
		summary: "measure round trips and bandwidth between two processes",
		help: `Starts a second process and measures, for each size: round trips, each of which
carries a tensor there and back into memory of the caller, one behind the other,
and then cold, after 2 ms of idleness; then the bandwidth one way, with -depth
messages in flight. CPU is the processor time of both processes, for a warm round
trip, and one way for a message or for 10^9 bytes. Each message has memory of its
own at both ends, and every byte is checked while no clock runs.

-transport and -channel are lists, of which every combination is measured; one
that does not work here is a line that says why. In both lists auto stands for
what a pipe uses if nothing is said, and "via" is the way that the tensors really
took: a channel, or inline for those within their messages, or bulk, the pipe's own
way, for those that mpt_uv has no lanes for; where round trips went one way and the
messages one way another, both, in this order, with a stroke in between. The channel
xth works within one process only: for it both ends are in one.

From 64 KiB on the rate one way is held against what the machine can do, measured
in the same run: a copy in memory on one core, and, where the tensors go over TCP,
plain connections, for mpt_uv as many as there are lanes. Printed is the part of it
that the pipe has, and in brackets its GB/s; the CPU behind it is a multiple of the copy's.

-buffers is the memory of the messages: default, what an application gets (the heap
of Go, malloc in C++); huge, huge pages at both ends in both libraries; or pool, a
tensor.Pool, for C++ again malloc.

With -compress the tensors are compressed on their way, and a column more says
what part of their bytes travels. What that gains is a matter of what they hold,
-data: pattern, which is what the other figures are of; zeros; weights, float32 of
a normal distribution; or random bytes. GB/s and CPU count the tensors' own bytes.

With -peer libtensorpipe the C++ library is measured in the same way, in turn, in
-pairs pairs of runs, on the same transport and channel, or on those that
-peer-transport and -peer-channel name: its best path need not be the best one here.
The figures are then medians, and the ratio is the median of those of the pairs.
What only one of the two has is printed without a ratio. It needs g++ and the library (Debian:
libtensorpipe-dev).

With -json each run is one line, and each ratio of two one more. -svg draws the
round trips and the rate one way over the sizes, a line for each path and library.`,
		make: func() command {
			return &benchmark{sizes: sizeList{0, 8, 64 << 10, 1 << 20, 16 << 20}, named: namedFlag{false}}
		},
	}
}

const auto = "auto"

// defaultPairs is how many pairs of runs it takes for a median to mean something.
const defaultPairs = 5

func (b *benchmark) flags(fs *flag.FlagSet) {
	all := catalog(torchLanes)
	fs.StringVar(&b.transports, "transport", auto, "`list` of transports, of auto,"+strings.Join(transportNames(all), ","))
	fs.StringVar(&b.channels, "channel", auto, "`list` of channels, of auto,"+strings.Join(channelNames(all), ","))
	fs.IntVar(&b.lanes, "lanes", torchLanes, "`number` of connections of the channel mpt_uv, at most")
	fs.StringVar(&b.dialect, "dialect", auto, "`dialect` to speak: compatible, native, or auto, which is native")
	fs.TextVar(&b.compression, "compress", pipe.CompressionNone, "`codec` to compress tensors with: s2 or zstd")
	fs.StringVar(&b.data, "data", bench.DataPattern, "what tensors `hold`: "+strings.Join(bench.AllData(), ", "))
	fs.Var(&b.sizes, "size", "`list` of sizes of the tensor, 0 for messages without one")
	fs.StringVar(&b.buffers, "buffers", bench.BuffersDefault, "`memory` of the messages: "+strings.Join(bench.AllBuffers(), ", "))
	fs.IntVar(&b.depth, "depth", 8, "`number` of messages in flight one way")
	fs.IntVar(&b.count, "count", 0, "`number` of messages and of round trips (default: what gives steady figures, by size)")
	fs.Var(&b.named, "named", "name the device on which tensors shall arrive; -named=both measures with and without")
	fs.BoolVar(&b.spin, "spin", true, "let who waits for a message look for it for a while before going to sleep")
	tracerFlag(fs, &b.anyTracer)
	fs.StringVar(&b.peer, "peer", "", "`library` to compare with: libtensorpipe")
	fs.StringVar(&b.peerTransport, "peer-transport", "", "`transport` that the peer uses (default: what -transport says)")
	fs.StringVar(&b.peerChannel, "peer-channel", "", "`channel` that the peer uses (default: what -channel says)")
	fs.IntVar(&b.pairs, "pairs", defaultPairs, "`number` of pairs of runs, with -peer")
	fs.BoolVar(&b.json, "json", false, "print JSON, an object in each line")
	fs.StringVar(&b.svg, "svg", "", "draw the figures into `file`")
}

func (b *benchmark) run(ctx context.Context, s streams) error {
	specs, err := b.specs()
	if err != nil {
		return err
	}
	peer, err := b.partner(specs)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	drawing, err := b.drawing()
	if err != nil {
		return err
	}
	child := bench.Program{Path: program, Args: []string{benchChildName}}
	run := benchRun{
		self: bench.Go{Child: child, Catalog: benchCatalog}, peer: peer, pairs: b.pairs,
		yardsticks: bench.Yardsticks(child), show: b.reports(s, drawing),
	}
	if err := run.all(ctx, specs); err != nil {
		drawing.discard()
		return err
	}
	return drawing.finish()
}

// reports are where results go.
func (b *benchmark) reports(s streams, d *benchDrawing) []benchReport {
	first := benchReport(&benchTable{out: s.out})
	if b.json {
		first = newBenchLines(s.out)
	}
	if d == nil {
		return []benchReport{first}
	}
	return []benchReport{first, d}
}

// drawing is the chart to draw, nil if none is wanted.
func (b *benchmark) drawing() (*benchDrawing, error) {
	if b.svg == "" {
		return nil, nil
	}
	return newBenchDrawing(b.svg)
}

// partner is the library to compare with, nil for none.
func (b *benchmark) partner(specs []bench.Spec) (*bench.Libtensorpipe, error) {
	var peer bench.Libtensorpipe
	switch {
	case b.peer == "" && b.peerTransport+b.peerChannel != "":
		return nil, usageErrorf("-peer-transport and -peer-channel are for runs with -peer")
	case b.peer == "" && b.pairs != defaultPairs:
		return nil, usageErrorf("-pairs is for runs with -peer")
	case b.peer == "":
		b.pairs = 1
		return nil, nil
	case b.peer != peer.Name():
		return nil, usageErrorf("-peer %q: want %s", b.peer, peer.Name())
	case b.transports == auto && b.peerTransport == "" || b.channels == auto && b.peerChannel == "":
		return nil, usageErrorf("-peer %s: say with -transport and -channel which path to compare, as in -transport uv -channel basic, or with -peer-transport and -peer-channel which one it takes", b.peer)
	case b.pairs < 1 || b.pairs > maxCount:
		return nil, usageErrorf("-pairs %d: want 1 to %d", b.pairs, maxCount)
	}
	var none error
	for _, s := range specs {
		err := peer.Check(s)
		if err == nil {
			return &peer, peer.Build()
		}
		none = err
	}
	return nil, usageErrorf("-peer %s: %w", b.peer, withoutPrefix(none))
}

// withoutPrefix takes out of an error what the name of the command says.
func withoutPrefix(err error) error {
	if !errors.Is(err, bench.ErrSpec) {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), bench.ErrSpec.Error()+": ", ""))
}
