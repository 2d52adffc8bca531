package mpt_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// errTest is the cause that tests pass.
var errTest = errors.New("a cause of the test's own")

// end is one end of a channel.
type end struct {
	channel.Channel
	host   *bulk.Mover
	hosted hosted // tensors passed to host
	broken chan error
	log    loglines.Lines
}

// hosted counts the tensors that use the bulk connection.
type hosted struct {
	channel.Channel
	mu    sync.Mutex
	sends int
}

func (h *hosted) Send(id uint64, src device.Buffer, done func(error)) {
	h.Channel.Send(id, src, done)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sends++
}

func (e *end) hostedSends() int {
	e.hosted.mu.Lock()
	defer e.hosted.mu.Unlock()
	return e.hosted.sends
}

// openEnd returns a new end of f over conn. If host is not nil the end uses the native dialect, and
// host moves small tensors; otherwise it uses the compatible one. The end and host are closed at
// the end of the test.
func openEnd(t testing.TB, f *mpt.Factory, role channel.Role, conn transport.Conn, host *bulk.Mover) *end {
	t.Helper()
	e := &end{host: host, broken: make(chan error, 1)}
	link := channel.Link{
		Conns:  []transport.Conn{conn},
		Peer:   "worker1",
		Broken: func(err error) { e.broken <- err },
		Logger: e.log.Logger(),
	}
	if host != nil {
		e.hosted.Channel = host.Lane(1)
		link.Native, link.Host = true, &e.hosted
	}
	ch, err := f.New(t.Context(), link, role)
	require.NoError(t, err)
	e.Channel = ch
	t.Cleanup(func() {
		ch.Close(nil)
		if host != nil {
			host.Close(nil)
		}
	})
	return e
}

// compatPair returns the two connected ends of a new channel in the compatible dialect: the
// dialling end of the factory one, and the listening end of the factory other.
func compatPair(t testing.TB, one, other *mpt.Factory, connect channeltest.Connect) (connected, listening *end) {
	t.Helper()
	c, l := connect(t)
	return openEnd(t, one, channel.RoleConnect, c, nil), openEnd(t, other, channel.RoleListen, l, nil)
}

// nativePair returns the two connected ends of a new channel in the native dialect: the dialling
// end of the factory one, and the listening end of the factory other.
func nativePair(t testing.TB, one, other *mpt.Factory, connect channeltest.Connect) (connected, listening *end) {
	t.Helper()
	c, l := connect(t)
	m, n := hosts(t, connect)
	return openEnd(t, one, channel.RoleConnect, c, m), openEnd(t, other, channel.RoleListen, l, n)
}

// hosts returns two connected bulk.Movers, which inform each other directly when a Recv is ready.
// As in a pipe, tests must call Send at one before Recv at the other.
func hosts(t testing.TB, connect channeltest.Connect) (one, other *bulk.Mover) {
	t.Helper()
	c, l := connect(t)
	mover := func(conn transport.Conn, peer **bulk.Mover) *bulk.Mover {
		return bulk.New(bulk.Config{
			Open:   func(context.Context) (transport.Stream, error) { return conn.(transport.Multiplexer).Stream() },
			Ready:  func(lane uint16, id uint64) { (*peer).HandleReady(lane, id) },
			Broken: func(error) {},
		})
	}
	one, other = mover(c, &other), mover(l, &one)
	return one, other
}

// overMem returns a Connect for connections within this process, over package mem.
func overMem() channeltest.Connect { return channeltest.Over(mem.New(nil), "") }

// move sends data from from to to with the given id, waits until it has arrived, and fails the test
// unless the bytes are the same.
func move(t testing.TB, id uint64, from, to *end, data []byte) {
	t.Helper()
	got := make([]byte, len(data))
	sent, received := send(from, id, data), recv(to, id, got)
	require.NoError(t, testwait.Finish(t, sent))
	require.NoError(t, testwait.Finish(t, received))
	require.True(t, bytes.Equal(data, got), "wrong bytes")
}

// send begins a Send of src at e with the given id, and returns a channel that receives the
// outcome. recv does the same with a Recv into dst.
func send(e *end, id uint64, src []byte) <-chan error {
	done, err := result()
	e.Send(id, device.Bytes(src), done)
	return err
}

func recv(e *end, id uint64, dst []byte) <-chan error {
	done, err := result()
	e.Recv(id, device.Bytes(dst), done)
	return err
}

func result() (done func(error), err <-chan error) {
	ch := make(chan error, 2)
	return func(err error) { ch <- err }, ch
}

// numbered returns n bytes with the values 1 to 251, repeated in this order, so that a byte at a
// wrong offset shows.
func numbered(n int) []byte {
	const period = 251
	p := make([]byte, n)
	for i := range min(n, period) {
		p[i] = byte(i) + 1
	}
	for have := period; have < n; have *= 2 { // faster under the race detector
		copy(p[have:], p[:have])
	}
	return p
}
