package hostile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// anywhere is where the end of a session may be noticed.
var anywhere = []string{"message", "control"}

// own and other are new streams that the attacker may open, and may not.
func (n *intruder) own() uint32 {
	if n.even {
		return 2
	}
	return 5
}

func (n *intruder) other() uint32 { return 7 - n.own() }

// What breaks the rules of the session ends the pipe.
func TestNativeSessionBroken(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, sessionBroken)
}

func sessionBroken(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	for name, c := range map[string]struct {
		say    func(n *intruder) []byte
		reason error
	}{
		"another version":    {func(*intruder) []byte { return slices.Concat([]byte{1}, muxWord(muxData, 0, 1, 0)[1:]) }, pipe.ErrProtocol},
		"unknown kind":       {func(*intruder) []byte { return muxWord(4, 0, 0, 0) }, pipe.ErrProtocol},
		"another protocol":   {func(*intruder) []byte { return []byte("GET / HTTP/1.1\r\n\r\n") }, pipe.ErrProtocol},
		"huge word":          {func(*intruder) []byte { return muxWord(muxData, 0, 1, 1<<31) }, pipe.ErrProtocol},
		"farewell in anger":  {func(*intruder) []byte { return muxWord(muxFarewell, 0, 0, 1) }, pipe.ErrProtocol},
		"stream of this end": {func(n *intruder) []byte { return muxWord(muxCredit, muxSYN, n.other(), 0) }, pipe.ErrProtocol},
		"stream opened twice": {func(n *intruder) []byte {
			return slices.Concat(muxWord(muxCredit, muxSYN, n.own(), 0), muxWord(muxCredit, muxSYN, n.own(), 0))
		}, pipe.ErrProtocol},
		"more than the window": {func(*intruder) []byte {
			chunk := slices.Concat(muxWord(muxData, 0, messageStream, 64<<10), make([]byte, 64<<10))
			return slices.Concat(muxMessages(4<<20), slices.Repeat(chunk, 20))
		}, pipe.ErrProtocol},
		"message stream reset": {func(*intruder) []byte { return muxWord(muxCredit, muxRST, messageStream, 0) }, pipe.ErrPeerLost},
		"control stream reset": {func(*intruder) []byte { return muxWord(muxCredit, muxRST, controlStream, 0) }, pipe.ErrPeerLost},
		"message stream ends":  {func(*intruder) []byte { return muxWord(muxData, muxFIN, messageStream, 0) }, pipe.ErrPeerLost},
		"control stream ends":  {func(*intruder) []byte { return muxWord(muxData, muxFIN, controlStream, 0) }, pipe.ErrPeerLost},
		"farewell":             {func(*intruder) []byte { return muxWord(muxFarewell, 0, 0, 0) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			n.exchange()
			n.first.send(c.say(n))
			if c.reason == nil {
				n.first.Close()
				c.reason = pipe.ErrPeerLost
			}
			n.requireDown(anywhere, c.reason)
			v.unharmed(t)
		})
	}
}

// muxMessages are empty messages of n bytes or more, which nobody takes.
func muxMessages(n int) (p []byte) {
	var m native.Message
	one := m.Append(nil, false)
	one = slices.Repeat(one, (64<<10)/len(one))
	for len(p) < n {
		p = append(append(p, muxWord(muxData, 0, messageStream, uint32(len(one)))...), one...)
	}
	return p
}

// Streams that nobody asked for are refused, however many, and pings answered;
// neither is anything to the pipe.
func TestNativeStreamFlood(t *testing.T) {
	inBothNativeRoles(t, streamFlood)
}

func streamFlood(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	n := open(t)
	for i := range uint32(2000) {
		stream := n.own() + 2*i
		n.first.send(muxWord(muxCredit, muxSYN, stream, 0), muxWord(muxData, 0, stream, 4), []byte("what"))
		n.first.send(muxWord(muxPing, muxSYN, 0, i))
		if i%2 == 1 {
			n.first.send(muxWord(muxCredit, muxRST, stream, 0))
		}
	}
	n.exchange()
	v.unharmed(t)
	n.leave()
}

// Handshakes that stop before the session has its streams are given up.
func TestNativeStreamsNeverOpened(t *testing.T) {
	t.Parallel()
	streamsNeverOpened(t, newVictim(t, hurried))
}

func streamsNeverOpened(t *testing.T, v *victim) {
	visitors := map[string]*raw{}
	for name, words := range map[string][]byte{
		"none":               nil,
		"half a word":        muxWord(muxCredit, muxSYN, messageStream, 0)[:5],
		"one":                muxWord(muxCredit, muxSYN, messageStream, 0),
		"not the first ones": muxWord(muxData, 0, messageStream, 0),
	} {
		visitors[name], _ = v.introduceNatively(t)
		visitors[name].send(words)
	}
	v.unharmed(t)
	for name, first := range visitors {
		t.Run(name, func(t *testing.T) {
			err := v.log.requireRefused(t, first.local(), pipe.ErrHandshake, pipe.ErrHandshakeTimeout)
			require.ErrorContains(t, err, "timed out while opening streams and channels")
			first.ended()
		})
	}
	t.Run("garbage", func(t *testing.T) {
		first, _ := v.introduceNatively(t)
		first.send([]byte("no word of yamux"))
		v.log.requireRefused(t, first.local(), pipe.ErrHandshake, pipe.ErrProtocol)
		first.ended()
	})
	v.quiet(t)
	v.alive(t)
}

// A peer that says goodbye sends no more control frames, and may still send
// messages; what it does beyond that is nothing to anybody else.
func TestNativeGoodbyes(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, goodbyes, impatient)
}

func goodbyes(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	bye := native.Control{Kind: native.Goodbye}
	t.Run("in good order", func(t *testing.T) { open(t).leave() })
	t.Run("with a reason", func(t *testing.T) {
		n := open(t)
		n.control(native.Control{Kind: native.Goodbye, Text: "the disk is full\nlevel=ERROR"})
		n.requireDown(anywhere, pipe.ErrPeerClosed)
		require.ErrorContains(t, n.pipe.Err(), `the disk is full\nlevel`)
	})
	t.Run("again and again, with all else behind", func(t *testing.T) {
		n := open(t)
		for range 5000 {
			n.control(bye)
			n.control(native.Control{Kind: native.WantRead, Number: 1 << 40})
		}
		n.exchangeInbound(t)
		n.finish(messageStream)
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
	t.Run("and then hangs up", func(t *testing.T) {
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
	t.Run("and then breaks the rules", func(t *testing.T) {
		n := open(t)
		n.control(bye)
		n.exchangeInbound(t)
		n.say(messageStream, []byte("no message at all"))
		require.ErrorIs(t, next(t, n.pipe), pipe.ErrProtocol)
		require.NoError(t, n.pipe.Close())
	})
	v.unharmed(t)
}

// What is being read when both ends close, and the peer breaks off behind its goodbye,
// is lost at once: nobody waits for what is not coming.
func TestNativeBreaksOffWhileBothClose(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *intruder) {
		n := open(t)
		_, read := n.reading(1 << 20)
		closed := make(chan error, 1)
		go func() { closed <- n.pipe.Close() }()
		require.ErrorIs(t, next(t, n.pipe), pipe.ErrClosed)
		n.control(native.Control{Kind: native.Goodbye})
		n.first.Close()
		require.ErrorIs(t, <-read, pipe.ErrPeerLost)
		require.NoError(t, <-closed)
		require.ErrorIs(t, n.pipe.Err(), pipe.ErrPeerLost)
		v.unharmed(t)
	}, func(o *pipe.Options) { o.CloseTimeout = time.Hour })
}

// exchangeInbound sends the victim a message.
func (n *intruder) exchangeInbound(t testing.TB) {
	n.message(inlineMessage("hi"))
	in, err := n.pipe.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())))
}
