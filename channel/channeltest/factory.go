package channeltest

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// errTest is the cause that tests give.
var errTest = errors.New("a cause given by the test")

var factoryCases = []testCase{
	{"Viable", func(t *testing.T, b Backend) {
		f := b.New(t)
		require.NoError(t, f.Viable())
		require.NoError(t, f.Viable())
		require.Positive(t, f.Connections(false))
		require.GreaterOrEqual(t, f.Connections(true), 0)
	}},

	{"BothEndsCommunicate", func(t *testing.T, b Backend) {
		connect, listen := b.New(t), b.New(t)
		pairs := 0
		for _, l := range connect.DeviceDescriptors() {
			for _, r := range listen.DeviceDescriptors() {
				ok := connect.CanCommunicate(l, r)
				require.Equal(t, ok, listen.CanCommunicate(r, l), "both ends agree")
				if ok {
					pairs++
				}
			}
		}
		require.NotZero(t, pairs)
	}},

	{"DescriptorsAreACopy", func(t *testing.T, b Backend) {
		f := b.New(t)
		want := f.DeviceDescriptors()
		for d := range f.DeviceDescriptors() {
			clear(f.DeviceDescriptors())
			require.Contains(t, f.DeviceDescriptors(), d)
		}
		require.Equal(t, want, f.DeviceDescriptors())
	}},

	{"RemoteTextIsNotTrusted", func(t *testing.T, b Backend) {
		f := b.New(t)
		for _, own := range f.DeviceDescriptors() {
			for _, text := range []string{"", "\x00", own + " ", " " + own, own + own, strings.Repeat("x", 1<<20), "\xff\xfe"} {
				require.False(t, f.CanCommunicate(own, text), "%.20q", text)
				require.False(t, f.CanCommunicate(text, own), "%.20q", text)
			}
		}
	}},

	{"WrongNumberOfConnections", func(t *testing.T, b Backend) {
		for _, extra := range []int{-1, 1} {
			conns := b.New(t).Connections(b.native) + extra
			if conns < 0 {
				continue // it needs no connection
			}
			w, other := newLinkParts(t, b, conns)
			link := channel.Link{
				Native: b.native,
				Conns:  w.conns,
				Peer:   "peer",
				Broken: func(error) {},
				Logger: slog.New(slog.DiscardHandler),
			}
			if b.native {
				_, link.Host = w.host(func(error) {})
			}
			_, err := b.New(t).New(t.Context(), link, channel.RoleConnect)
			var fault *channel.LinkError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, conns, fault.Got)
			if b.native {
				late := make(chan error, 1)
				link.Host.Recv(0, device.Bytes(make([]byte, 1)), func(err error) { late <- err })
				require.ErrorIs(t, testwait.Finish(t, late), channel.ErrClosed)
			}
			for _, c := range other.conns {
				ended := testwait.Start(func() error { _, err := c.NextFrame(); return err })
				require.Error(t, testwait.Finish(t, ended), "New must close the connections")
			}
		}
	}},
}
