package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// benchmark is the command that measures paths between two processes.
type benchmark struct {
	transports, channels string
	dialect              string
	compression          pipe.Compression
	data                 string
	sizes                sizeList
	depth, count, pairs  int
	named                namedFlag
	spin                 bool
	peer                 string
	json                 bool
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

-transport and -channel are lists, of which every combination is measured, or
auto, the path that a pipe takes if nothing is said. The channel xth works within
one process only: for it both ends are in one.

With -compress the tensors are compressed on their way, and a column more says
what part of their bytes travels. What that gains is a matter of what they hold,
-data: pattern, which is what the other figures are of; zeros; weights, float32 of
a normal distribution; or random bytes. GB/s and CPU count the tensors' own bytes.

With -peer libtensorpipe the C++ library is measured in the same way, in turn, in
-pairs pairs of runs, on the same transport and channel. The figures are then
medians, and the ratio is the median of those of the pairs. It needs g++ and the
library (Debian: libtensorpipe-dev).

With -json each run is one line, and with a peer one more has the ratios.`,
		make: func() command {
			return &benchmark{sizes: sizeList{0, 8, 64 << 10, 1 << 20, 16 << 20}, named: namedFlag{false}}
		},
	}
}

const auto = "auto"

// defaultPairs is how many pairs of runs it takes for a median to mean something.
const defaultPairs = 5

func (b *benchmark) flags(fs *flag.FlagSet) {
	profile := tensorpipe.DefaultProfile()
	fs.StringVar(&b.transports, "transport", auto, "`list` of transports, of "+strings.Join(transportNames(profile), ","))
	fs.StringVar(&b.channels, "channel", auto, "`list` of channels, of "+strings.Join(channelNames(profile), ","))
	fs.StringVar(&b.dialect, "dialect", auto, "`dialect` to speak: compatible, native, or auto, which is native")
	fs.TextVar(&b.compression, "compress", pipe.CompressionNone, "`codec` to compress tensors with: s2 or zstd")
	fs.StringVar(&b.data, "data", bench.DataPattern, "what tensors `hold`: "+strings.Join(bench.AllData(), ", "))
	fs.Var(&b.sizes, "size", "`list` of sizes of the tensor, 0 for messages without one")
	fs.IntVar(&b.depth, "depth", 8, "`number` of messages in flight one way")
	fs.IntVar(&b.count, "count", 0, "`number` of messages and of round trips (default: what gives steady figures, by size)")
	fs.Var(&b.named, "named", "name the device on which tensors shall arrive; -named=both measures with and without")
	fs.BoolVar(&b.spin, "spin", true, "let who waits for a message look for it for a while before going to sleep")
	fs.StringVar(&b.peer, "peer", "", "`library` to compare with: libtensorpipe")
	fs.IntVar(&b.pairs, "pairs", defaultPairs, "`number` of pairs of runs, with -peer")
	fs.BoolVar(&b.json, "json", false, "print JSON, an object in each line")
}

func (b *benchmark) run(ctx context.Context, s streams) error {
	specs, err := b.specs()
	if err != nil {
		return err
	}
	peer, err := b.subject(specs)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	self := bench.Go{Child: bench.Program{Path: program, Args: []string{benchChildName}}, Catalog: catalog}
	show := newBenchReport(s.out, b.json)
	for _, spec := range specs {
		runs, err := b.measure(ctx, self, peer, spec)
		if err != nil {
			return interrupted(ctx, withoutPrefix(err))
		}
		if err := show.print(spec, runs); err != nil {
			return err
		}
	}
	return nil
}

// measure measures once, or, with a peer, in pairs.
func (b *benchmark) measure(ctx context.Context, self, peer bench.Subject, spec bench.Spec) (*bench.Comparison, error) {
	if peer != nil {
		return bench.Compare(ctx, self, peer, spec, b.pairs)
	}
	r, err := self.Measure(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &bench.Comparison{A: []*bench.Result{r}}, nil
}

// subject is the library to compare with, nil for none.
func (b *benchmark) subject(specs []bench.Spec) (bench.Subject, error) {
	var peer bench.Libtensorpipe
	switch {
	case b.peer == "" && b.pairs != defaultPairs:
		return nil, usageErrorf("-pairs is for runs with -peer")
	case b.peer == "":
		return nil, nil
	case b.peer != peer.Name():
		return nil, usageErrorf("-peer %q: want %s", b.peer, peer.Name())
	case b.transports == auto || b.channels == auto:
		return nil, usageErrorf("-peer %s: say with -transport and -channel which path to compare, as in -transport uv -channel basic", b.peer)
	case b.pairs < 1 || b.pairs > maxCount:
		return nil, usageErrorf("-pairs %d: want 1 to %d", b.pairs, maxCount)
	}
	for _, s := range specs {
		if err := peer.Check(s); err != nil {
			return nil, usageErrorf("-peer %s: %w", b.peer, withoutPrefix(err))
		}
	}
	return peer, peer.Build()
}

// specs are what to measure, in the order in which it is printed.
func (b *benchmark) specs() ([]bench.Spec, error) {
	if b.depth == 0 {
		return nil, usageErrorf("-depth 0: want 1 or more")
	}
	dialect, err := (&pathFlags{dialect: b.dialect}).chosenDialect()
	if err != nil {
		return nil, err
	}
	profile := tensorpipe.DefaultProfile()
	transports, err := combinations("transport", b.transports, transportNames(profile))
	if err != nil {
		return nil, err
	}
	channels, err := combinations("channel", b.channels, channelNames(profile))
	if err != nil {
		return nil, err
	}
	var out []bench.Spec
	for _, t := range transports {
		for _, c := range channels {
			for _, s := range b.messages() {
				s.Transports, s.Channels, s.Dialect = t, c, dialect
				s.OneProcess = slices.Equal(c, []string{xth.Name})
				if err := s.Check(); err != nil {
					return nil, usageErrorf("%w", withoutPrefix(err))
				}
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// messages are specs of the messages that each path has to carry.
func (b *benchmark) messages() (out []bench.Spec) {
	for _, named := range b.named {
		for _, size := range b.sizes {
			if size == 0 && !named && len(b.named) > 1 {
				continue // without a tensor it is the same again
			}
			s := b.spec(int(size))
			s.Named = named
			out = append(out, s)
		}
	}
	return out
}

// spec is the part that all paths share.
func (b *benchmark) spec(size int) bench.Spec {
	trips, messages := b.count, b.count
	if b.count == 0 {
		trips, messages = bench.DefaultTrips(size), bench.DefaultMessages(size)
	}
	return bench.Spec{
		Size: size, Depth: b.depth, NoSpin: !b.spin, Data: b.data, Compression: b.compression,
		RoundTrips: trips, ColdTrips: min(trips, maxColdTrips), OneWay: messages,
	}
}

// maxColdTrips: each takes more than 2 ms.
const maxColdTrips = 200

// combinations cuts a list into those of one name each; auto is one list of no
// names, which stands for all.
func combinations(what, list string, known []string) ([][]string, error) {
	if list == auto {
		return [][]string{nil}, nil
	}
	names, err := pick(what, list, known)
	if err != nil {
		return nil, err
	}
	var out [][]string
	for _, n := range names {
		out = append(out, []string{n})
	}
	return out, nil
}

// withoutPrefix takes out of an error what the name of the command says.
func withoutPrefix(err error) error {
	if !errors.Is(err, bench.ErrSpec) {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), bench.ErrSpec.Error()+": ", ""))
}
