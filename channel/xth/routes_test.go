package xth

import (
	"bytes"
	"crypto/rand"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// openRoutes returns the number of routes, 0 to 2, that the table of this process has between the
// two addresses of c.
func openRoutes(c transport.Conn) (n int) {
	table.mu.Lock()
	defer table.mu.Unlock()
	for _, e := range []endpoints{{c.LocalAddr(), c.RemoteAddr()}, {c.RemoteAddr(), c.LocalAddr()}} {
		if table.open[e] != nil {
			n++
		}
	}
	return n
}

// connect returns both ends of n new connections, which are closed at the end of the test. Their
// addresses were never used before, because the table of routes may contain old ones.
func connect(t *testing.T, n int) (near, far []transport.Conn) {
	t.Helper()
	tr := mem.New(nil)
	l, err := tr.Listen(t.Context(), rand.Text())
	require.NoError(t, err)
	defer l.Close()
	for range n {
		d, err := tr.Dial(t.Context(), l.Addr())
		require.NoError(t, err)
		a, err := l.Accept(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { d.Close(); a.Close() })
		near, far = append(near, d), append(far, a)
	}
	return near, far
}

func open(t *testing.T, conns ...transport.Conn) channel.Channel {
	t.Helper()
	return openAs(t, false, func(error) {}, conns...)
}

func openAs(t *testing.T, native bool, broken func(error), conns ...transport.Conn) channel.Channel {
	t.Helper()
	link := channel.Link{Native: native, Conns: conns, Peer: "peer", Broken: broken}
	ch, err := New().New(t.Context(), link, channel.RoleConnect)
	require.NoError(t, err)
	return ch
}

// The table of this process has one route for each direction of an open channel, and none after
// both ends have closed.
func TestRoutesLiveAsLongAsTheirEnds(t *testing.T) {
	near, far := connect(t, connections)
	from, to := open(t, near...), open(t, far...)
	require.Equal(t, 2, openRoutes(near[0]), "one for each direction")
	for i := range uint64(3) {
		from.Send(i, device.Bytes(make([]byte, 10)), func(error) {})
	}
	require.NoError(t, from.Close(nil))
	require.NoError(t, to.Close(nil))
	require.Zero(t, openRoutes(near[0]))
}

// If a sender announces a tensor and closes before its peer has opened its end, the Recv and the
// channel of the peer end with channel.ErrAborted, and not with channel.ErrProtocol. No route
// remains.
func TestSenderClosesBeforePeerOpens(t *testing.T) {
	for name, native := range map[string]bool{"compatible": false, "native": true} {
		t.Run(name, func(t *testing.T) {
			near, far := connect(t, connections+1)
			leaveEarly(t, native, near[:connections])
			require.Equal(t, 1, openRoutes(near[0]), "the peer may yet come")

			broken := make(chan error, 1)
			to := openAs(t, native, func(err error) { broken <- err }, far[0], far[2]) // does not notice the end of the other connection
			received := make(chan error, 1)
			to.Recv(0, device.Bytes(make([]byte, 10)), func(err error) { received <- err })
			for _, err := range []error{<-received, <-broken} {
				require.ErrorIs(t, err, channel.ErrAborted)
				require.NotErrorIs(t, err, channel.ErrProtocol)
			}
			require.NoError(t, to.Close(nil))
			require.Zero(t, openRoutes(near[0]))
		})
	}
}

// leaveEarly opens an end over conns, sends a tensor, waits until the tensor has been announced,
// and closes the end.
func leaveEarly(t *testing.T, native bool, conns []transport.Conn) {
	t.Helper()
	written := make(chan int, 1)
	from := openAs(t, native, func(error) {}, &observed{conns[0], written}, conns[1])
	from.Send(0, device.Bytes(make([]byte, 10)), func(error) {})
	require.Equal(t, 1, <-written)
	require.NoError(t, from.Close(nil))
}

// The table keeps at most maxOrphans routes that a sender has left before a receiver joined. A
// receiver of a dropped route gets channel.ErrProtocol, and one of a kept route channel.ErrAborted.
func TestOrphanedRoutesAreBounded(t *testing.T) {
	r := routeTable{open: make(map[endpoints]*route)}
	of := func(i int) endpoints { return endpoints{from: strconv.Itoa(i)} }
	for i := range maxOrphans + 10 {
		rt := r.joinSender(of(i))
		rt.add(newDescription())
		r.leaveSender(rt)
	}
	require.Len(t, r.open, maxOrphans)
	_, err := r.joinReceiver(of(9)).claim(1)
	require.ErrorIs(t, err, channel.ErrProtocol)
	_, err = r.joinReceiver(of(10)).claim(1)
	require.ErrorIs(t, err, channel.ErrAborted)
}

// A new connection can have the addresses of an earlier one whose sender has left: its descriptions
// can be claimed.
func TestReusedAddresses(t *testing.T) {
	r := routeTable{open: make(map[endpoints]*route)}
	rt := r.joinSender(endpoints{})
	rt.add(newDescription())
	r.leaveSender(rt)

	o := newDescription()
	again := r.joinSender(endpoints{})
	again.add(o)
	got, err := r.joinReceiver(endpoints{}).claim(o.address())
	require.NoError(t, err)
	require.Equal(t, o, got)
	r.leaveSender(again)
	require.Len(t, r.open, 1)
	r.leaveReceiver(again)
	require.Empty(t, r.open)
}

// observed is a connection that reports how many frames were written.
type observed struct {
	transport.Conn
	written chan<- int
}

func (o *observed) WriteFrames(frames ...transport.Frame) error {
	err := o.Conn.WriteFrames(frames...)
	o.written <- len(frames)
	return err
}

// If a sender closes before its peer has received an announced tensor, the Recv of the peer fails
// with channel.ErrAborted.
func TestSenderClosesBeforePeerReceives(t *testing.T) {
	near, far := connect(t, connections+1)
	written := make(chan int, 10)
	from := open(t, &observed{near[0], written}, near[1])
	to := open(t, far[0], far[2]) // does not notice the end of the other connection
	from.Send(0, device.Bytes(make([]byte, 10)), func(error) {})
	from.Send(1, device.Bytes(make([]byte, 10)), func(error) {})
	for n := 0; n < 2; {
		n += <-written
	}
	received := make(chan error, 1)
	to.Recv(0, device.Bytes(make([]byte, 10)), func(err error) { received <- err })
	require.NoError(t, <-received)
	require.NoError(t, from.Close(nil))

	to.Recv(1, device.Bytes(make([]byte, 10)), func(err error) { received <- err })
	require.ErrorIs(t, <-received, channel.ErrAborted)
	require.NoError(t, to.Close(nil))
}

// A copy stops after one chunk if the receiver aborts or closes, the sender revokes the tensor, or
// the connection ends, and returns the error for that.
func TestCopyingEndsWithinAChunk(t *testing.T) {
	stop := errors.New("enough")
	for _, c := range []struct {
		name   string
		enough func(e *end, o *description)
		want   error
	}{
		{"receiver aborts", func(e *end, _ *description) { e.Abort(7, stop) }, stop},
		{"sender withdraws", func(_ *end, o *description) { o.stop = true }, channel.ErrAborted},
		{"receiver closes", func(e *end, _ *description) { e.Close(stop) }, stop},
		{"connection breaks", func(e *end, _ *description) { e.announcements.Close(); <-e.lifecycle.Context().Done() }, transport.ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, _ := connect(t, connections)
			e := open(t, near...).(*end)
			defer e.Close(nil)
			src, dst := bytes.Repeat([]byte{1}, 3*chunkSize), make([]byte, 3*chunkSize)
			o := newDescription()
			o.reset(device.Bytes(src), nil)
			e.current = activeRecv{id: 7, done: func(error) {}}
			c.enough(e, o)
			require.ErrorIs(t, e.copyFrom(o, device.Bytes(dst)), c.want)
			require.Equal(t, src[:chunkSize], dst[:chunkSize], "a chunk was under way")
			require.Equal(t, make([]byte, 2*chunkSize), dst[chunkSize:])
		})
	}
}

func TestDescriptionPhases(t *testing.T) {
	src := device.Bytes([]byte("abc"))
	o := newDescription()
	o.reset(src, nil)
	require.Equal(t, 3, o.size())
	_, finished := o.outcome()
	require.False(t, finished)

	got, _, ok := o.beginCopy()
	require.True(t, ok)
	require.Equal(t, src, got)
	require.False(t, o.stopRequested())
	back := make(chan bool)
	go func() { o.revoke(); close(back) }()
	for !o.stopRequested() { // as a receiver does between chunks
		select {
		case <-back:
			t.Error("the memory was given back while it was being copied")
		default:
		}
	}
	o.finish(channel.ErrAborted)
	<-back
	result, finished := o.outcome()
	require.True(t, finished)
	require.Equal(t, channel.ErrAborted, result)

	o.reset(src, nil)
	require.False(t, o.stopRequested())
	o.revoke()
	_, _, ok = o.beginCopy()
	require.False(t, ok, "withdrawn before anybody asked")
	_, finished = o.outcome()
	require.False(t, finished, "the peer still has to answer")
}
