package agent

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// undeclared hides the optional interfaces of a transport.
type undeclared struct{ transport.Transport }

// partlyLocal declares that one of its addresses is local.
type partlyLocal struct{ transport.Transport }

func (partlyLocal) IsLocal(addr string) bool { return addr == "inside" }

// ackBounded declares that it can limit how long bytes stay unacknowledged, and records the limits.
type ackBounded struct {
	undeclared
	limits *[]time.Duration
}

func (a ackBounded) WithAckTimeout(d time.Duration) transport.Transport {
	*a.limits = append(*a.limits, d)
	return ackBounded{undeclared{mem.New(nil)}, a.limits}
}

// Without a token or Insecure, Join fails with ErrConfig unless the transport of the address
// declares that the address is local.
func TestListenAccessIsDeclaredByTheTransport(t *testing.T) {
	hidden := func(m transport.Transport) transport.Transport { return undeclared{m} }
	partly := func(m transport.Transport) transport.Transport { return partlyLocal{m} }
	for name, c := range map[string]struct {
		over     func(transport.Transport) transport.Transport
		address  string
		insecure bool
		want     error
		warned   bool
	}{
		"undeclared":          {hidden, "own://inside", false, ErrConfig, false},
		"undeclared, allowed": {hidden, "own://inside", true, nil, true},
		"declared local":      {partly, "own://inside", false, nil, false},
		"declared remote":     {partly, "own://outside", false, ErrConfig, false},
		"not registered":      {partly, "other://inside", false, pipe.ErrURL, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log loglines.Lines
			s := store.NewMemory(store.Limits{})
			defer s.Close()
			cfg := Config{
				Name: "worker0", WorldSize: 1, Store: s, Logger: log.Logger(), Listen: []string{c.address}, Insecure: c.insecure,
				NewContext: func(o pipe.Options) (*pipe.Context, error) {
					o.Transports = []pipe.TransportEntry{{Name: "own", Transport: c.over(mem.New(nil))}}
					o.Channels = []pipe.ChannelEntry{}
					return pipe.New(o)
				},
			}
			a, err := Join(t.Context(), cfg)
			require.ErrorIs(t, err, c.want) // of nil, only nil
			if c.want == ErrConfig {
				require.ErrorContains(t, err, "listening at "+c.address+" admits any process")
			}
			if c.want == nil {
				require.NoError(t, a.Close())
			}
			require.Equal(t, c.warned, strings.Contains(log.String(), "any process that reaches this address"))
		})
	}
}

// newContext replaces a transport that can limit how long bytes stay unacknowledged by one with the
// given limit. Other transports, and the profile, stay as they are.
func TestAckTimeoutIsDeclaredByTheTransport(t *testing.T) {
	var limits []time.Duration
	plain, bounded := undeclared{mem.New(nil)}, ackBounded{undeclared{mem.New(nil)}, &limits}
	p := tensorpipe.Profile{
		Transports: []pipe.TransportEntry{{Name: "plain", Transport: plain}, {Name: "bounded", Priority: 1, Transport: bounded}},
		Channels:   []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}},
	}
	c, err := newContext(p, pipe.Options{}, time.Second)
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, []time.Duration{time.Second}, limits)
	require.Equal(t, bounded, p.Transports[1].Transport, "the profile is unchanged")

	l, err := plain.Listen(t.Context(), "plain")
	require.NoError(t, err)
	defer l.Close()
	_, err = c.Listen(t.Context(), "plain://plain")
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	l, err = bounded.Listen(t.Context(), "bounded")
	require.NoError(t, err)
	defer l.Close()
	_, err = c.Listen(t.Context(), "bounded://bounded")
	require.NoError(t, err, "the context uses the transport with the limit")
}
