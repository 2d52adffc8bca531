package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/bench"
)

// specs returns one spec for each combination of -transport, -channel, -named and -size, in the
// order in which they are measured and printed. The error is a *usageError if a flag is invalid.
func (b *benchmark) specs() ([]bench.Spec, error) {
	if b.depth == 0 {
		return nil, usageErrorf("-depth 0: want 1 or more")
	}
	if b.lanes == 0 {
		return nil, usageErrorf("-lanes 0: want 1 to %d", maxLanes)
	}
	if err := b.checkDeviceFlags(); err != nil {
		return nil, err
	}
	dialect, err := (&pathFlags{dialect: b.dialect}).chosenDialect()
	if err != nil {
		return nil, err
	}
	all := catalog(torchLanes)
	transports, err := combinations("transport", b.transports, transportNames(all))
	if err != nil {
		return nil, err
	}
	channels, err := combinations("channel", b.channels, b.knownChannels())
	if err != nil {
		return nil, err
	}
	var out []bench.Spec
	for _, t := range transports {
		for _, c := range channels {
			for _, s := range b.messages() {
				s.Transports, s.Channels, s.Dialect = t, c, dialect
				s.OneProcess = inOneProcess(c)
				if err := s.Check(); err != nil {
					return nil, usageErrorf("%w", withoutPrefix(err))
				}
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// messages returns one spec for each combination of -named and -size. The caller sets the path in
// copies of them. With -named=both it returns size 0 only once, with Named true, because a message
// without a tensor has no target that could be named.
func (b *benchmark) messages() (out []bench.Spec) {
	for _, named := range b.named {
		for _, size := range b.sizes {
			if size == 0 && !named && len(b.named) > 1 {
				continue // without a tensor there is no target to name
			}
			s := b.spec(int(size))
			s.Named = named
			out = append(out, s)
		}
	}
	return out
}

// spec returns a spec for tensors of size bytes with all flags that are the same for every path.
// The caller sets Named, OneProcess, the transport, the channel and the dialect.
func (b *benchmark) spec(size int) bench.Spec {
	roundTrips, messages := b.count, b.count
	if b.count == 0 {
		roundTrips, messages = bench.DefaultTrips(size), bench.DefaultMessages(size)
	}
	here, there := b.devices.ends()
	return bench.Spec{
		Device: here, ServerDevice: there, Lanes: b.lanes, Buffers: b.buffers, Size: size, Depth: b.depth, NoSpin: !b.spin, BusyPolling: b.busy, NoEager: !b.eager, Data: b.data, Compression: b.compression,
		AllowAnyTracer: b.anyTracer,
		PeerTransport:  b.peerTransport, PeerChannel: b.peerChannel,
		RoundTrips: roundTrips, ColdTrips: min(roundTrips, maxColdTrips), OneWay: messages,
	}
}

// maxColdTrips bounds the cold round trips, each of which takes more than 2 ms.
const maxColdTrips = 200

// combinations splits list, the value of the flag what, at its commas and returns a list for each
// name, with that name as its only element. For the name auto the list is nil, which selects the
// default of a pipe. The error is a *usageError if a name is neither auto nor in known.
func combinations(what, list string, known []string) ([][]string, error) {
	names := strings.Split(list, ",")
	if err := checkNames(what, names, append([]string{auto}, known...)); err != nil {
		return nil, err
	}
	var out [][]string
	for _, n := range names {
		if n == auto {
			out = append(out, nil)
		} else {
			out = append(out, []string{n})
		}
	}
	return out, nil
}

// sizeList is a flag.Value for a list of sizes, such as 0,8,64KiB.
type sizeList []byteSize

// Set replaces the list by the sizes in text, which are separated by commas, such as "0,8,64KiB".
// The error is that of the first size that is invalid; the list then has the sizes before it.
func (l *sizeList) Set(text string) error {
	*l = nil
	for part := range strings.SplitSeq(text, ",") {
		var size byteSize
		if err := size.Set(part); err != nil {
			return err
		}
		*l = append(*l, size)
	}
	return nil
}

// String returns the sizes separated by commas, such as "0B,8B,64KiB", in the syntax of Set. A size
// that is no multiple of its unit is rounded.
func (l *sizeList) String() string {
	var parts []string
	for _, size := range *l {
		parts = append(parts, strings.ReplaceAll(size.String(), " ", ""))
	}
	return strings.Join(parts, ",")
}

// namedFlag is a flag.Value that selects whether the sender names the target device: false,
// true, or both in turn.
type namedFlag []bool

// Set sets n to the value that text stands for: "true", "false" or "both". It returns an error for
// any other text, and then leaves n unchanged.
func (n *namedFlag) Set(text string) error {
	switch text {
	case "true":
		*n = namedFlag{true}
	case "false":
		*n = namedFlag{false}
	case "both":
		*n = namedFlag{true, false}
	default:
		return errors.New("want true, false or both")
	}
	return nil
}

// String returns "true", "false" or "both", in the syntax of Set. It returns "false" if n is empty.
func (n *namedFlag) String() string {
	switch {
	case len(*n) == 2:
		return "both"
	case slices.Contains(*n, true):
		return "true"
	default:
		return "false"
	}
}

// IsBoolFlag returns true, which makes package flag accept -named without a value, as -named=true.
func (n *namedFlag) IsBoolFlag() bool { return true }
