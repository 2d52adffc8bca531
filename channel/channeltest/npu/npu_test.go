package npu_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func hold(s device.Stream) func() { return s.(*delayed.Stream).Hold() }

// Channels of package npu pass the conformance suite, over several host channels and transports.
// Under the race detector the test leaves out one transport, because the code of npu does not use
// the transport.
func TestConformance(t *testing.T) {
	type conformance struct {
		name         string
		host         channel.Factory
		connect      channeltest.Connect
		skipsAborted bool
	}
	all := []conformance{
		{"basic over mem", basic.New(), channeltest.Over(mem.New(nil), ""), false},
		{"xth over mem", xth.New(), channeltest.Over(mem.New(nil), ""), true},
		{"basic over uv", basic.New(), channeltest.Over(uv.New(), "127.0.0.1:0"), false},
	}
	for _, c := range race.Pick(all, all[:2]) {
		t.Run(c.name, func(t *testing.T) {
			kind := npu.NewKind()
			t.Cleanup(kind.Close)
			channeltest.Run(t, channeltest.Backend{
				Name:         npu.Name,
				New:          func(*testing.T) channel.Factory { return npu.New(kind, c.host) },
				Connect:      c.connect,
				Kinds:        []device.Kind{kind},
				Hold:         hold,
				SkipsAborted: c.skipsAborted,
			})
		})
	}
}

// The file npu.go, a device kind and its channel, has less than 150 lines and imports no internal
// package.
func TestSmallAndPublic(t *testing.T) {
	src, err := os.ReadFile("npu.go")
	require.NoError(t, err)
	require.Less(t, bytes.Count(src, []byte("\n")), 150)
	file, err := parser.ParseFile(token.NewFileSet(), "npu.go", src, parser.ImportsOnly)
	require.NoError(t, err)
	for _, imp := range file.Imports {
		require.False(t, strings.Contains(imp.Path.Value, "/internal/"), imp.Path.Value)
	}
}

// ends returns the two ends of a new channel for devices of kind, whose host channels are of
// package basic, without the checks of the suite. They are closed at the end of the test.
func ends(t *testing.T, kind *delayed.Kind) (from, to channel.Channel) {
	t.Helper()
	near, far := channeltest.Over(mem.New(nil), "")(t)
	open := func(c transport.Conn) channel.Channel {
		ch, err := npu.New(kind, basic.New()).New(t.Context(), channel.Link{
			Conns:  []transport.Conn{c},
			Peer:   "peer",
			Broken: func(error) {},
			Logger: slog.New(slog.DiscardHandler),
		}, channel.RoleConnect)
		require.NoError(t, err)
		t.Cleanup(func() { ch.Close(nil) })
		return ch
	}
	return open(near), open(far)
}

// A transfer of memory of another kind, or of memory whose stream has failed, calls done with that
// error. The other end then gets io.EOF or, after a complete Send, no error.
func TestFaultsReachDone(t *testing.T) {
	kind, other := npu.NewKind(), delayed.New("other", 1)
	t.Cleanup(kind.Close)
	t.Cleanup(other.Close)
	foreign, err := other.Alloc(other.Devices()[0], 10, nil)
	require.NoError(t, err)
	own, err := kind.Alloc(kind.Devices()[0], 10, nil)
	require.NoError(t, err)
	stream, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	failing, err := kind.Alloc(kind.Devices()[0], 10, stream)
	require.NoError(t, err)
	require.NoError(t, stream.(*delayed.Stream).Launch(func(...[]byte) error { return io.ErrNoProgress }))

	for _, c := range []struct {
		name     string
		src, dst device.Buffer
		send     error
		recv     error
	}{
		{"foreign source", foreign, own, device.ErrMemory, io.EOF},
		{"foreign target", own, foreign, nil, device.ErrMemory},
		{"failing source", failing, own, io.ErrNoProgress, io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			from, to := ends(t, kind)
			sent, received := make(chan error, 1), make(chan error, 1)
			from.Send(0, c.src, func(err error) { sent <- err })
			to.Recv(0, c.dst, func(err error) { received <- err })
			require.ErrorIs(t, <-sent, c.send)
			require.ErrorIs(t, <-received, c.recv)
		})
	}
}
