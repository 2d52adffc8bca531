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

// benchmark is the command bench, which measures paths between two processes. The fields are its flags.
type benchmark struct {
	transports, channels string
	devices              deviceList
	lanes                int
	anyTracer            bool
	dialect              pipe.Dialect
	buffers              string
	compression          pipe.Compression
	data                 string
	sizes                sizeList
	depth, count, pairs  int
	named                namedFlag
	spin, busy, eager    bool
	peer                 string
	peerTransport        string
	peerChannel          string
	json                 bool
	svg                  string
	trace                string
	growth               growthFlags
}

var benchEntry = entry{
	name:    "bench",
	usage:   "[flags]",
	summary: "measure round trips and bandwidth between two processes",
	help: `Starts a second process and measures, for each size: round trips, each of which
carries a tensor there and back into memory of the caller, one after the other,
and then cold, after 2 ms of idleness; then the bandwidth one way, with -depth
messages in flight. CPU is the processor time of both processes, for a warm round
trip, and one way for a message or for 10^9 bytes. Each message has memory of its
own at both ends, and every byte is checked while no time is measured.

-transport and -channel are lists, of which every combination is measured; for one
that does not work here the reason is printed. In both lists auto is the default of
a pipe. The column "via" shows how the tensors travelled: by a channel; inline, within
their messages; or bulk, on the pipe's own connection, for tensors too small for the
lanes of mpt_uv. If round trips and the messages one way differ, both are shown, with a
slash between them. The channel xth works within one process only: both ends are then in
one process.

From 64 KiB on the rate one way is compared with two others of the same run: a copy in
memory on one core and, for tensors over TCP, plain connections, as many as mpt_uv has
lanes. The table shows the fraction that the pipe reaches and, in brackets, the other's
GB/s; the CPU column next to it is a multiple of the CPU time of the copy.

-buffers is the memory of the messages: default, what an application gets (the heap
of Go, malloc in C++); huge, huge pages at both ends in both libraries; or pool, a
tensor.Pool, for C++ again malloc.

With -compress the tensors are compressed on the wire, and one more column shows the
fraction of their bytes that is sent. It depends on their content, -data: pattern, which
is the default; zeros; weights, float32 of a normal distribution; or random bytes. GB/s
and CPU count the bytes of the tensors before compression.

With -device the tensors are in memory of GPUs, and -channel lists channels for these. A
round trip ends when the echo is in the memory of the GPU: this process then waits for the
GPU, and nothing else does within round trips. One way, the second process waits once for
each batch of messages, which ends the time. The column "hand-over" is the time from the
Write to the return of the second process's Read, for which neither waits for the GPU; it
is by the clock of the machine. The rate one way is compared with the driver's copies
from the memory of one end to that of the other, within one process.

With -peer libtensorpipe the C++ library is measured in the same way, in turn, in
-pairs pairs of runs, on the same transport and channel, or on those that
-peer-transport and -peer-channel name: its best path need not be the best one here.
The figures are then medians, and the ratio is the median of those of the pairs.
A path that only one of the two has is printed without a ratio. This needs g++ and the
library (Debian: libtensorpipe-dev).

With -pipes or -processes another measurement is made: what many pipes cost. With
-pipes 1,100 one process opens so many pipes to a second one; with -processes 2,16 it
has a pipe to each of the others. The columns are, for a pipe at that process, resident
bytes, shared memory of these and file descriptors, each without what the process has
before its first pipe; the threads that all pipes add; the CPU time of all processes
while nothing is sent, as a share of one core; then round trips of 8 bytes with all pipes
open, on one pipe and on all in turn, with the CPU time of all processes. A number that
the machine or the library does not support is printed with the reason.

With -json each run and each ratio of two runs is one line. -svg draws the round trips
and the rate one way over the sizes, a line for each path and library. -trace writes
when each message was written and read, and when pipes were opened and closed, at both
ends of this library; the figures of such a run are a little worse.`,
	make: func() command {
		return &benchmark{sizes: sizeList{0, 8, 64 << 10, 1 << 20, 16 << 20}, named: namedFlag{false}}
	},
}

const auto = "auto"

// defaultPairs is the default of -pairs.
const defaultPairs = 5

func (b *benchmark) flags(fs *flag.FlagSet) {
	all := catalog(torchLanes)
	fs.StringVar(&b.transports, "transport", auto, "`list` of transports, of auto,"+strings.Join(transportNames(all), ","))
	fs.StringVar(&b.channels, "channel", auto, "`list` of channels, of auto,"+strings.Join(channelNames(all), ","))
	fs.Var(&b.devices, "device", "`GPU` with the tensors, such as cuda:0, or two, of this process and of the second one")
	fs.IntVar(&b.lanes, "lanes", torchLanes, "`number` of connections of the channel mpt_uv, at most")
	fs.StringVar((*string)(&b.dialect), "dialect", auto, "`dialect` to speak: compatible, native, or auto, which is native")
	fs.TextVar(&b.compression, "compress", pipe.CompressionNone, "`codec` to compress tensors with: s2 or zstd")
	fs.StringVar(&b.data, "data", bench.DataPattern, "what tensors `hold`: "+strings.Join(bench.AllData(), ", "))
	fs.Var(&b.sizes, "size", "`list` of sizes of the tensor, 0 for messages without one")
	fs.StringVar(&b.buffers, "buffers", bench.BuffersDefault, "`memory` of the messages: "+strings.Join(bench.AllBuffers(), ", "))
	fs.IntVar(&b.depth, "depth", 8, "`number` of messages in flight one way")
	fs.IntVar(&b.count, "count", 0, "`number` of messages and of round trips (default: by size, for steady figures)")
	fs.Var(&b.named, "named", "name the target device of tensors; -named=both measures with and without")
	fs.BoolVar(&b.spin, "spin", true, "spin for a while before blocking for a message")
	fs.BoolVar(&b.busy, "busy-polling", false, "never block for a message: each process keeps a processor busy")
	fs.BoolVar(&b.eager, "eager", true, "send parts of 64 KiB to 4 MiB over TCP before the peer asks for them")
	tracerFlag(fs, &b.anyTracer)
	b.growth.flags(fs)
	fs.StringVar(&b.peer, "peer", "", "`library` to compare with: libtensorpipe")
	fs.StringVar(&b.peerTransport, "peer-transport", "", "`transport` that the peer uses (default: that of -transport)")
	fs.StringVar(&b.peerChannel, "peer-channel", "", "`channel` that the peer uses (default: that of -channel)")
	fs.IntVar(&b.pairs, "pairs", defaultPairs, "`number` of pairs of runs, with -peer")
	fs.BoolVar(&b.json, "json", false, "print JSON, an object in each line")
	fs.StringVar(&b.svg, "svg", "", "draw the figures into `file`")
	fs.StringVar(&b.trace, "trace", "", "write the events of the pipes into `file`, for chrome://tracing and Perfetto")
}

func (b *benchmark) run(ctx context.Context, s streams) error {
	if b.growth.wanted() {
		return b.grow(ctx, s)
	}
	specs, err := b.specs()
	if err != nil {
		return err
	}
	if err := b.checkDevices(); err != nil {
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
	svg, err := openOutput("-svg", b.svg)
	if err != nil {
		return err
	}
	traceFile, err := openOutput("-trace", b.trace)
	if err != nil {
		svg.discard()
		return err
	}
	drawing := &benchDrawing{}
	show := []benchReport{&benchTable{out: s.out}, drawing}
	if b.json {
		show[0] = newBenchLines(s.out)
	}
	var trace *bench.Trace
	if traceFile != nil {
		trace = &bench.Trace{}
	}
	child := bench.Program{Path: program, Args: []string{benchChildName}}
	run := benchRun{
		self: bench.Go{Child: child, Catalog: benchCatalog, Trace: trace}, peer: peer, pairs: b.pairs,
		yardsticks: bench.Yardsticks(child), show: show,
	}
	if err := run.all(ctx, specs); err != nil {
		svg.discard()
		traceFile.discard()
		return err
	}
	return errors.Join(svg.write(drawing.chart()), traceFile.write(trace))
}

// partner checks the flags about the peer, builds the library that -peer names, and returns it.
// Without -peer it sets b.pairs to 1 and returns nil, nil. The error is a *usageError if these
// flags are invalid, or if the peer can measure none of specs. Otherwise it is that of building the
// library.
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
		return nil, usageErrorf("-peer %s: name the path to compare with -transport and -channel, as in -transport uv -channel basic, or the peer's with -peer-transport and -peer-channel", b.peer)
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

// withoutPrefix returns err unchanged if it does not match bench.ErrSpec. Otherwise it returns a
// new error with the text of err, from which it removes the text of bench.ErrSpec: that text
// repeats the name of the command. The new error does not match bench.ErrSpec.
func withoutPrefix(err error) error {
	if !errors.Is(err, bench.ErrSpec) {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), bench.ErrSpec.Error()+": ", ""))
}

// benchChild is the hidden command that runs the second process of a bench.
type benchChild struct{}

const benchChildName = "bench-child"

var benchChildEntry = entry{
	name:    benchChildName,
	summary: "the second process of a bench",
	help:    "Answers what tpipe bench sends, which starts it.",
	hidden:  true,
	make:    func() command { return benchChild{} },
}

func (benchChild) flags(*flag.FlagSet) {}

func (benchChild) run(ctx context.Context, s streams) error {
	return bench.RunChild(ctx, s.in, s.out, benchCatalog)
}

// benchReport receives the results of a bench as they are measured. Its methods are called by one
// goroutine.
type benchReport interface {
	// measured is called with the results for a spec.
	measured(spec bench.Spec, runs *bench.Comparison) error

	// absent is called once for a path that does not exist here. why is the reason.
	absent(spec bench.Spec, why error) error
}

// benchRun measures specs one after the other and passes the results to its reports.
type benchRun struct {
	self       bench.Subject
	peer       *bench.Libtensorpipe // nil: none
	pairs      int
	yardsticks []bench.Yardstick
	show       []benchReport
}

// all measures specs in order and passes each result to every report in r.show. If the path of a
// spec does not exist here, it passes the reason to the reports once, and skips the specs that
// follow for the same path. It stops at the first other error of a measurement or of a report, and
// returns it, or errInterrupted if a signal has ended ctx.
func (r *benchRun) all(ctx context.Context, specs []bench.Spec) error {
	missing := "" // the last path that was found not to exist
	for _, spec := range specs {
		if pathName(spec) == missing {
			continue
		}
		runs, why := r.compare(ctx, spec)
		if why != nil && !errors.Is(why, bench.ErrPath) {
			return interrupted(ctx, withoutPrefix(why))
		}
		for _, to := range r.show {
			var err error
			if why != nil {
				err = to.absent(spec, why)
			} else {
				err = to.measured(spec, runs)
			}
			if err != nil {
				return interrupted(ctx, err)
			}
		}
		if why != nil {
			missing = pathName(spec)
		}
	}
	return nil
}

// compare measures spec with this library and, if there is a peer that has the path of spec, with
// the peer. If the peer does not have the path, the field WhyB of the result is the reason. Without
// a peer WhyB is nil. The error is that of bench.Compare; it matches bench.ErrPath if neither has
// the path.
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

// pathName returns the transports and the channels that s asks for as "transport/channel". Several
// names are separated by commas, and "auto" stands for none.
func pathName(s bench.Spec) string { return orAuto(s.Transports) + "/" + orAuto(s.Channels) }

// orAuto returns the names in list, separated by commas, or "auto" if list is empty.
func orAuto(list []string) string {
	if len(list) == 0 {
		return auto
	}
	return strings.Join(list, ",")
}
