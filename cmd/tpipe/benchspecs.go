package main

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
)

// specs are what to measure, in the order in which it is printed.
func (b *benchmark) specs() ([]bench.Spec, error) {
	if b.depth == 0 {
		return nil, usageErrorf("-depth 0: want 1 or more")
	}
	if b.lanes == 0 {
		return nil, usageErrorf("-lanes 0: want 1 to %d", maxLanes)
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
	channels, err := combinations("channel", b.channels, channelNames(all))
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
		Lanes: b.lanes, Buffers: b.buffers, Size: size, Depth: b.depth, NoSpin: !b.spin, Data: b.data, Compression: b.compression,
		AllowAnyTracer: b.anyTracer,
		PeerTransport:  b.peerTransport, PeerChannel: b.peerChannel,
		RoundTrips: trips, ColdTrips: min(trips, maxColdTrips), OneWay: messages,
	}
}

// maxColdTrips: each takes more than 2 ms.
const maxColdTrips = 200

// combinations cuts a list into those of one name each; auto is a list of no
// names, which stands for what a pipe uses if nothing is said.
func combinations(what, list string, known []string) ([][]string, error) {
	names, err := pick(what, list, append([]string{auto}, known...))
	if err != nil {
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
