package bench

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// Catalog makes all transports and channels that a Spec can name. A nil Catalog
// has what [tensorpipe.DefaultProfile] has, with the options.
type Catalog func(Tuning) tensorpipe.Profile

// Tuning is what a Spec asks of a Catalog.
type Tuning struct {
	Lanes int          // of the channel mpt_uv
	TCP   []uv.Option  // for all that makes TCP connections, lanes as well
	Shm   []shm.Option // for the transport shm

	AllowAnyTracer bool // for the channel cma
}

// profile is what s names, or, where it names nothing, what a pipe uses if
// nothing is said.
func (c Catalog) profile(s Spec) (p tensorpipe.Profile, err error) {
	t := Tuning{Lanes: s.withDefaults().Lanes, AllowAnyTracer: s.AllowAnyTracer}
	if s.NoSpin {
		t.TCP, t.Shm = []uv.Option{uv.WithSpin(0)}, []shm.Option{shm.WithSpin(0)}
	}
	if c == nil {
		c = usual
	}
	all, plain := c(t), tensorpipe.DefaultProfile()
	p.Transports, err = pick("transport", all.Transports, s.Transports, plain.Transports, transportName)
	if err == nil {
		p.Channels, err = pick("channel", all.Channels, s.Channels, plain.Channels, channelName)
	}
	return p, err
}

func usual(t Tuning) tensorpipe.Profile {
	p := tensorpipe.DefaultProfile()
	for i, e := range p.Transports {
		switch e.Name {
		case tcpTransport:
			p.Transports[i].Transport = uv.New(t.TCP...)
		case shm.Name:
			p.Transports[i].Transport = shm.New(t.Shm...)
		}
	}
	for i, e := range p.Channels {
		if e.Name == cma.Name {
			p.Channels[i].Factory = cma.New(cma.Options{AllowAnyTracer: t.AllowAnyTracer})
		}
	}
	return p
}

// tcpTransport is the one over TCP.
const tcpTransport = "uv"

func transportName(e pipe.TransportEntry) string { return e.Name }

func channelName(e pipe.ChannelEntry) string { return e.Name }

// pick returns the entries with the wanted names, those of plain if none is
// wanted.
func pick[E any](what string, all []E, wanted []string, plain []E, name func(E) string) ([]E, error) {
	if len(wanted) == 0 {
		for _, e := range plain {
			wanted = append(wanted, name(e))
		}
	}
	for _, w := range wanted {
		if !slices.ContainsFunc(all, func(e E) bool { return name(e) == w }) {
			return nil, specErrorf("there is no %s %q", what, w)
		}
	}
	return slices.DeleteFunc(all, func(e E) bool { return !slices.Contains(wanted, name(e)) }), nil
}
