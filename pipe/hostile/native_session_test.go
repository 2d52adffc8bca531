package hostile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// anywhere are the connections that may notice the end of a session.
var anywhere = []string{"message", "control"}

// allowedStream returns the id of a new stream that the attacker may open; it depends on which end
// has dialled. foreignStream returns the id of one that it may not open.
func (n *nativeAttack) allowedStream() uint32 {
	if n.even {
		return 2
	}
	return 5
}

func (n *nativeAttack) foreignStream() uint32 { return 7 - n.allowedStream() }

// TestNativeSessionBroken checks that a violation of the protocol of the session breaks the pipe.
func TestNativeSessionBroken(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, sessionBroken)
}

func sessionBroken(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	for name, c := range map[string]struct {
		say    func(n *nativeAttack) []byte
		reason error
	}{
		"another version":    {func(*nativeAttack) []byte { return slices.Concat([]byte{1}, muxHeader(muxData, 0, 1, 0)[1:]) }, pipe.ErrProtocol},
		"unknown kind":       {func(*nativeAttack) []byte { return muxHeader(4, 0, 0, 0) }, pipe.ErrProtocol},
		"another protocol":   {func(*nativeAttack) []byte { return []byte("GET / HTTP/1.1\r\n\r\n") }, pipe.ErrProtocol},
		"huge word":          {func(*nativeAttack) []byte { return muxHeader(muxData, 0, 1, 1<<31) }, pipe.ErrProtocol},
		"farewell in anger":  {func(*nativeAttack) []byte { return muxHeader(muxGoAway, 0, 0, 1) }, pipe.ErrProtocol},
		"stream of this end": {func(n *nativeAttack) []byte { return muxHeader(muxCredit, muxSYN, n.foreignStream(), 0) }, pipe.ErrProtocol},
		"stream opened twice": {func(n *nativeAttack) []byte {
			return slices.Concat(muxHeader(muxCredit, muxSYN, n.allowedStream(), 0), muxHeader(muxCredit, muxSYN, n.allowedStream(), 0))
		}, pipe.ErrProtocol},
		"more than the window": {func(*nativeAttack) []byte {
			chunk := slices.Concat(muxHeader(muxData, 0, messageStream, 64<<10), make([]byte, 64<<10))
			return slices.Concat(muxMessages(4<<20), slices.Repeat(chunk, 20))
		}, pipe.ErrProtocol},
		"message stream reset": {func(*nativeAttack) []byte { return muxHeader(muxCredit, muxRST, messageStream, 0) }, pipe.ErrPeerLost},
		"control stream reset": {func(*nativeAttack) []byte { return muxHeader(muxCredit, muxRST, controlStream, 0) }, pipe.ErrPeerLost},
		"message stream ends":  {func(*nativeAttack) []byte { return muxHeader(muxData, muxFIN, messageStream, 0) }, pipe.ErrPeerLost},
		"control stream ends":  {func(*nativeAttack) []byte { return muxHeader(muxData, muxFIN, controlStream, 0) }, pipe.ErrPeerLost},
		"go away":              {func(*nativeAttack) []byte { return muxHeader(muxGoAway, 0, 0, 0) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			n.exchange()
			n.first.send(c.say(n))
			if c.reason == nil {
				n.first.Close()
				c.reason = pipe.ErrPeerLost
			}
			n.requireBrokenNative(anywhere, c.reason)
			v.requireHealthy(t)
		})
	}
}

// muxMessages returns the bytes, on the wire of the session, of at least n bytes of empty messages.
func muxMessages(n int) (p []byte) {
	var m native.Message
	one := m.Append(nil, false)
	one = slices.Repeat(one, (64<<10)/len(one))
	for len(p) < n {
		p = append(append(p, muxHeader(muxData, 0, messageStream, uint32(len(one)))...), one...)
	}
	return p
}

// TestNativeStreamFlood checks that unexpected streams are reset and pings are answered, without an
// effect on the pipe.
func TestNativeStreamFlood(t *testing.T) {
	inBothNativeRoles(t, streamFlood)
}

func streamFlood(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	n := open(t)
	for i := range uint32(2000) {
		stream := n.allowedStream() + 2*i
		n.first.send(muxHeader(muxCredit, muxSYN, stream, 0), muxHeader(muxData, 0, stream, 4), []byte("what"))
		n.first.send(muxHeader(muxPing, muxSYN, 0, i))
		if i%2 == 1 {
			n.first.send(muxHeader(muxCredit, muxRST, stream, 0))
		}
	}
	n.exchange()
	v.requireHealthy(t)
	n.closeOrderly()
}

// TestNativeStreamsNeverOpened checks that a handshake times out if the client stops before it has
// opened the streams of the session.
func TestNativeStreamsNeverOpened(t *testing.T) {
	t.Parallel()
	streamsNeverOpened(t, newVictim(t, shortHandshakeTimeout))
}

func streamsNeverOpened(t *testing.T, v *victim) {
	visitors := map[string]*raw{}
	for name, words := range map[string][]byte{
		"none":               nil,
		"half a word":        muxHeader(muxCredit, muxSYN, messageStream, 0)[:5],
		"one":                muxHeader(muxCredit, muxSYN, messageStream, 0),
		"not the first ones": muxHeader(muxData, 0, messageStream, 0),
	} {
		visitors[name], _ = v.sendNativeOffer(t)
		visitors[name].send(words)
	}
	v.requireHealthy(t)
	for name, first := range visitors {
		t.Run(name, func(t *testing.T) {
			err := v.log.requireRejected(t, first.local(), pipe.ErrHandshake, pipe.ErrHandshakeTimeout)
			require.ErrorContains(t, err, "timed out while opening streams and channels")
			first.waitClosed()
		})
	}
	t.Run("garbage", func(t *testing.T) {
		first, _ := v.sendNativeOffer(t)
		first.send([]byte("not a yamux frame"))
		v.log.requireRejected(t, first.local(), pipe.ErrHandshake, pipe.ErrProtocol)
		first.waitClosed()
	})
	v.requireIdle(t)
	v.requireServing(t)
}

// TestNativeCloseFrames checks that messages that a peer sends after its close frame still arrive,
// that control frames after it are ignored, and how the pipe ends if the peer then closes, resets
// or misuses the connection. None of this affects another pipe.
func TestNativeCloseFrames(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, closeFrames, shortCloseTimeout)
}

func closeFrames(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	bye := native.Control{Kind: native.Goodbye}
	t.Run("in order", func(t *testing.T) { open(t).closeOrderly() })
	t.Run("with a reason", func(t *testing.T) {
		n := open(t)
		n.control(native.Control{Kind: native.Goodbye, Text: "the disk is full\nlevel=ERROR"})
		n.requireBrokenNative(anywhere, pipe.ErrPeerClosed)
		require.ErrorContains(t, n.pipe.Err(), `the disk is full\nlevel`)
	})
	t.Run("repeatedly, with other frames after it", func(t *testing.T) {
		n := open(t)
		for range 5000 {
			n.control(bye)
			n.control(native.Control{Kind: native.WantRead, Number: 1 << 40})
		}
		n.exchangeInbound(t)
		n.closeStreams(messageStream)
		require.ErrorIs(t, next(t, n.pipe), pipe.ErrPeerClosed)
		require.ErrorIs(t, n.pipe.Write(t.Context(), &pipe.Message{}), pipe.ErrPeerClosed)
		require.NoError(t, n.pipe.Close())
	})
	t.Run("and then nothing", func(t *testing.T) {
		n := open(t)
		n.control(bye)
		n.exchangeInbound(t)
		require.ErrorIs(t, n.pipe.Close(), pipe.ErrCloseTimeout)
	})
	t.Run("and then resets", func(t *testing.T) {
		n := open(t)
		n.control(bye)
		n.exchangeInbound(t)
		n.first.reset()
		err := next(t, n.pipe)
		require.ErrorIs(t, err, pipe.ErrPeerLost)
		require.NoError(t, n.pipe.Close())
	})
	t.Run("and then closes the connection", func(t *testing.T) {
		n := open(t)
		n.control(bye)
		n.exchangeInbound(t)
		n.first.Close()
		require.ErrorIs(t, next(t, n.pipe), pipe.ErrPeerLost)
		require.NoError(t, n.pipe.Close())
	})
	t.Run("and then violates the protocol", func(t *testing.T) {
		n := open(t)
		n.control(bye)
		n.exchangeInbound(t)
		n.sendOn(messageStream, []byte("not a message"))
		require.ErrorIs(t, next(t, n.pipe), pipe.ErrProtocol)
		require.NoError(t, n.pipe.Close())
	})
	v.requireHealthy(t)
}

// TestNativeConnectionEndsWhileBothClose checks that a Read fails at once with ErrPeerLost if both
// ends are closing and the connection ends after the peer's close frame.
func TestNativeConnectionEndsWhileBothClose(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
		n := open(t)
		_, read := n.startRead(1 << 20)
		closed := make(chan error, 1)
		go func() { closed <- n.pipe.Close() }()
		require.ErrorIs(t, next(t, n.pipe), pipe.ErrClosed)
		n.control(native.Control{Kind: native.Goodbye})
		n.first.Close()
		require.ErrorIs(t, <-read, pipe.ErrPeerLost)
		require.NoError(t, <-closed)
		require.ErrorIs(t, n.pipe.Err(), pipe.ErrPeerLost)
		v.requireHealthy(t)
	}, func(o *pipe.Options) { o.CloseTimeout = time.Hour })
}

// exchangeInbound sends the victim a small message and requires that its application can read it.
func (n *nativeAttack) exchangeInbound(t testing.TB) {
	n.message(inlineMessage("hi"))
	in, err := n.pipe.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())))
}
