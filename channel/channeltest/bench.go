package channeltest

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// NewMover opens a channel in the compatible dialect and returns a function that transfers size
// bytes of host memory over it and waits until both ends are done. If a transfer fails, that
// function calls t.Fatal. It allocates nothing itself and must not be called concurrently. The
// channel is closed at the end of t.
func NewMover(t testing.TB, factory func() channel.Factory, connect Connect, size int) (move func()) {
	t.Helper()
	from, to := openPlain(t, factory, connect)
	src, dst := device.Bytes(make([]byte, size)), device.Bytes(make([]byte, size))
	results := make(chan error, 2)
	done := func(err error) { results <- err }
	var id uint64
	return func() {
		to.Recv(id, dst, done)
		from.Send(id, src, done)
		id++
		for range 2 {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Benchmark opens a channel in the compatible dialect and measures transfers of size bytes of host
// memory, one after the other, after a first one that is not measured. It reports throughput and
// allocations.
func Benchmark(b *testing.B, factory func() channel.Factory, connect Connect, size int) {
	move := NewMover(b, factory, connect, size)
	move()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		move()
	}
}

// openPlain returns the two ends of a new channel in the compatible dialect, without the checks of
// the suite. factory is called for each end, and connect for each connection. Both ends are closed
// at the end of t.
func openPlain(t testing.TB, factory func() channel.Factory, connect Connect) (from, to channel.Channel) {
	t.Helper()
	var conns [2][]transport.Conn
	for range factory().Connections(false) {
		c, l := connect(t)
		conns[0], conns[1] = append(conns[0], c), append(conns[1], l)
	}
	var ends [2]channel.Channel
	for i, role := range []channel.Role{channel.RoleConnect, channel.RoleListen} {
		ch, err := factory().New(t.Context(), channel.Link{
			Conns:  conns[i],
			Peer:   role.String(),
			Broken: func(error) {},
			Logger: slog.New(slog.DiscardHandler),
		}, role)
		require.NoError(t, err)
		t.Cleanup(func() { ch.Close(nil) })
		ends[i] = ch
	}
	return ends[0], ends[1]
}
