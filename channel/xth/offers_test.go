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

// openRoutes counts what the process-wide table has for the ends of a connection.
func openRoutes(c transport.Conn) (n int) {
	routes.mu.Lock()
	defer routes.mu.Unlock()
	for _, e := range []ends{{c.LocalAddr(), c.RemoteAddr()}, {c.RemoteAddr(), c.LocalAddr()}} {
		if routes.open[e] != nil {
			n++
		}
	}
	return n
}

// connect returns both ends of as many connections as asked for. No connection before had
// their addresses: the table may know those.
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

// The table holds what the living ends need and nothing else.
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

// A sender that has gone before its peer even made its end has not lied either.
func TestSenderGoesBeforeItsPeerComes(t *testing.T) {
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

// leaveEarly makes an end that announces a tensor, which nobody takes, and closes
// it.
func leaveEarly(t *testing.T, native bool, conns []transport.Conn) {
	t.Helper()
	written := make(chan int, 1)
	from := openAs(t, native, func(error) {}, &observed{conns[0], written}, conns[1])
	from.Send(0, device.Bytes(make([]byte, 10)), func(error) {})
	require.Equal(t, 1, <-written)
	require.NoError(t, from.Close(nil))
}

// The peers of those that left may never come: only so many are waited for. One
// that comes too late for that is told what it has always been.
func TestFewOrphansAreKept(t *testing.T) {
	r := registry{open: make(map[ends]*route)}
	of := func(i int) ends { return ends{from: strconv.Itoa(i)} }
	for i := range maxOrphans + 10 {
		rt := r.joinSender(of(i))
		rt.add(newOffer())
		r.leaveSender(rt)
	}
	require.Len(t, r.open, maxOrphans)
	_, err := r.joinReceiver(of(9)).claim(1)
	require.ErrorIs(t, err, channel.ErrProtocol)
	_, err = r.joinReceiver(of(10)).claim(1)
	require.ErrorIs(t, err, channel.ErrAborted)
}

// A connection may have the addresses of one long past.
func TestAddressesComeBack(t *testing.T) {
	r := registry{open: make(map[ends]*route)}
	rt := r.joinSender(ends{})
	rt.add(newOffer())
	r.leaveSender(rt)

	o := newOffer()
	again := r.joinSender(ends{})
	again.add(o)
	got, err := r.joinReceiver(ends{}).claim(o.address())
	require.NoError(t, err)
	require.Equal(t, o, got)
	r.leaveSender(again)
	require.Len(t, r.open, 1)
	r.leaveReceiver(again)
	require.Empty(t, r.open)
}

// observed tells how many frames were written.
type observed struct {
	transport.Conn
	written chan<- int
}

func (o *observed) WriteFrames(frames ...transport.Frame) error {
	err := o.Conn.WriteFrames(frames...)
	o.written <- len(frames)
	return err
}

// A sender that goes before its peer has asked for what it announced has not
// lied: the peer finds it withdrawn, not missing.
func TestSenderGoesBeforeItsPeerAsks(t *testing.T) {
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

// Whoever wants a copy to end waits for a chunk, not for a tensor.
func TestCopyingEndsWithinAChunk(t *testing.T) {
	stop := errors.New("enough")
	for _, c := range []struct {
		name   string
		enough func(e *end, o *offer)
		want   error
	}{
		{"receiver aborts", func(e *end, _ *offer) { e.Abort(7, stop) }, stop},
		{"sender withdraws", func(_ *end, o *offer) { o.stop = true }, channel.ErrAborted},
		{"receiver closes", func(e *end, _ *offer) { e.Close(stop) }, stop},
		{"connection breaks", func(e *end, _ *offer) { e.announcements.Close(); <-e.life.Context().Done() }, transport.ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, _ := connect(t, connections)
			e := open(t, near...).(*end)
			defer e.Close(nil)
			src, dst := bytes.Repeat([]byte{1}, 3*chunk), make([]byte, 3*chunk)
			o := newOffer()
			o.renew(device.Bytes(src))
			e.receiving = receipt{id: 7, done: func(error) {}}
			c.enough(e, o)
			require.ErrorIs(t, e.move(device.Bytes(dst), o), c.want)
			require.Equal(t, src[:chunk], dst[:chunk], "a chunk was under way")
			require.Equal(t, make([]byte, 2*chunk), dst[chunk:])
		})
	}
}

func TestOfferPhases(t *testing.T) {
	src := device.Bytes([]byte("abc"))
	o := newOffer()
	o.renew(src)
	require.Equal(t, 3, o.size())
	_, over := o.outcome()
	require.False(t, over)

	got, ok := o.begin()
	require.True(t, ok)
	require.Equal(t, src, got)
	require.False(t, o.stopped())
	back := make(chan bool)
	go func() { o.withdraw(); close(back) }()
	for !o.stopped() { // as the receiver does between chunks
		select {
		case <-back:
			t.Error("the memory was given back while it was being copied")
		default:
		}
	}
	o.finish(channel.ErrAborted)
	<-back
	result, over := o.outcome()
	require.True(t, over)
	require.Equal(t, channel.ErrAborted, result)

	o.renew(src)
	require.False(t, o.stopped())
	o.withdraw()
	_, ok = o.begin()
	require.False(t, ok, "withdrawn before anybody asked")
	_, over = o.outcome()
	require.False(t, over, "the peer still has to answer")
}
