package main

import (
	"flag"
	"slices"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// uvName is the name of the transport over TCP, the only one that has TLS.
const uvName = "uv"

// torchLanes is how many lanes PyTorch gives to mpt_uv. A C++ peer must have as
// many.
const torchLanes = 16

// maxLanes bounds -lanes: each costs a connection.
const maxLanes = 128

// catalog is all that -transport and -channel can name: the default profile,
// and what has to be asked for. TCP connections, those of the lanes among them,
// are made with the options.
func catalog(lanes int, with ...uv.Option) tensorpipe.Profile {
	p := tensorpipe.DefaultProfile()
	p.Transports = put(p.Transports, transportName,
		pipe.TransportEntry{Name: uvName, Priority: 0, Transport: uv.New(with...)},
	)
	p.Channels = put(p.Channels, channelName,
		pipe.ChannelEntry{
			Name: mpt.UVName, Priority: 1100, MinBytes: mpt.NativeBytes,
			Factory: mpt.New(mpt.Lanes{Count: lanes, Transport: uv.New(with...)}),
		},
		directCopies(cma.Options{}),
	)
	return p
}

// directCopies is the channel that reads the memory of the other process.
func directCopies(o cma.Options) pipe.ChannelEntry {
	return pipe.ChannelEntry{Name: cma.Name, Priority: 1200, Factory: cma.New(o)}
}

// tracerFlag declares the flag of commands that may use that channel.
func tracerFlag(fs *flag.FlagSet, allow *bool) {
	fs.BoolVar(allow, "allow-any-tracer", false, "for the channel cma where Yama's ptrace_scope is 1: let every process of the same user read, change and trace this one, as if Yama were not there")
}

// benchCatalog is the same for measurements.
func benchCatalog(t bench.Tuning) tensorpipe.Profile {
	p := catalog(t.Lanes, t.TCP...)
	p.Channels = put(p.Channels, channelName, directCopies(cma.Options{AllowAnyTracer: t.AllowAnyTracer}))
	at := slices.IndexFunc(p.Transports, func(e pipe.TransportEntry) bool { return e.Name == shm.Name })
	p.Transports[at].Transport = shm.New(t.Shm...)
	return p
}

// put adds entries, or sets them in the place of those with the same name.
func put[E any](to []E, name func(E) string, entries ...E) []E {
	for _, e := range entries {
		at := slices.IndexFunc(to, func(other E) bool { return name(other) == name(e) })
		if at < 0 {
			to = append(to, e)
		} else {
			to[at] = e
		}
	}
	return to
}

func transportNames(p tensorpipe.Profile) []string { return names(p.Transports, transportName) }

func channelNames(p tensorpipe.Profile) []string { return names(p.Channels, channelName) }

func transportName(e pipe.TransportEntry) string { return e.Name }

func channelName(e pipe.ChannelEntry) string { return e.Name }

func names[E any](entries []E, name func(E) string) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = name(e)
	}
	return out
}
