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
	{"Viable", "Factory.Connections: Connections returns the number of connections that a channel needs from its pipe: transport connections in the compatible dialect, of which there is at least one, and streams of one session in the native one.", func(t *testing.T, b Backend) {
		f := b.New(t)
		require.NoError(t, f.Viable())
		require.NoError(t, f.Viable())
		require.Positive(t, f.Connections(false))
		require.GreaterOrEqual(t, f.Connections(true), 0)
	}},

	{"BothEndsCommunicate", "Factory.CanCommunicate: It must not trust the remote descriptor and must be symmetric, since both ends decide.", func(t *testing.T, b Backend) {
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

	{"DescriptorsAreACopy", "Factory.DeviceDescriptors: It has at least one device and no empty text, and is the same at each call; the caller may change it.", func(t *testing.T, b Backend) {
		f := b.New(t)
		want := f.DeviceDescriptors()
		for d := range f.DeviceDescriptors() {
			clear(f.DeviceDescriptors())
			require.Contains(t, f.DeviceDescriptors(), d)
		}
		require.Equal(t, want, f.DeviceDescriptors())
	}},

	{"RemoteTextIsNotTrusted", "Factory.CanCommunicate: It returns false for a text that no channel of this kind sends.", func(t *testing.T, b Backend) {
		f := b.New(t)
		for _, own := range f.DeviceDescriptors() {
			for _, text := range []string{"", "\x00", strings.Repeat("x", 1<<20), "\xff\xfe"} {
				require.False(t, f.CanCommunicate(own, text), "%.20q", text)
				require.False(t, f.CanCommunicate(text, own), "%.20q", text)
			}
			for _, text := range []string{own + " ", " " + own, own + own} {
				require.Equal(t, f.CanCommunicate(own, text), f.CanCommunicate(text, own), "both ends agree on %.20q", text)
			}
		}
	}},

	{"WrongNumberOfConnections", "Factory.New: If New fails, it has closed them. It fails if link has not as many connections as the channel needs, see [CheckLink].", func(t *testing.T, b Backend) {
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
			require.Error(t, err)
			if b.native {
				late := make(chan error, 1)
				link.Host.Recv(0, device.Bytes(make([]byte, 1)), func(err error) { late <- err })
				require.Error(t, testwait.Finish(t, late), "New must close the Host")
			}
			for _, c := range other.conns {
				ended := testwait.Start(func() error { _, err := c.NextFrame(); return err })
				require.Error(t, testwait.Finish(t, ended), "New must close the connections")
			}
		}
	}},
}
