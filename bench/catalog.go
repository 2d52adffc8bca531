package bench

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// Catalog makes all transports and channels that a Spec can name. The channel
// mpt_uv has that many lanes. TCP connections, those of the lanes among them,
// are made with the options. A nil Catalog has what
// [tensorpipe.DefaultProfile] has.
type Catalog func(lanes int, tcp ...uv.Option) tensorpipe.Profile

// profile is what s names, or, where it names nothing, what a pipe uses if
// nothing is said.
func (c Catalog) profile(s Spec) (p tensorpipe.Profile, err error) {
	var tcp []uv.Option
	if s.NoSpin {
		tcp = []uv.Option{uv.WithSpin(0)}
	}
	if c == nil {
		c = usual
	}
	all, plain := c(s.withDefaults().Lanes, tcp...), tensorpipe.DefaultProfile()
	p.Transports, err = pick("transport", all.Transports, s.Transports, plain.Transports, transportName)
	if err == nil {
		p.Channels, err = pick("channel", all.Channels, s.Channels, plain.Channels, channelName)
	}
	return p, err
}

func usual(_ int, tcp ...uv.Option) tensorpipe.Profile {
	p := tensorpipe.DefaultProfile()
	for i, e := range p.Transports {
		if e.Name == tcpTransport {
			p.Transports[i].Transport = uv.New(tcp...)
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
