package hostile_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A client leaves in the middle of opening a pipe. Where the victim reads, it
// notices at once; while it waits for further connections it does not read, so
// that such a client costs it a slot until the time is up.
func TestClientLeavesHandshake(t *testing.T) {
	t.Parallel()
	clientLeavesHandshake(t, newVictim(t, hurried))
}

func clientLeavesHandshake(t *testing.T, v *victim) {
	gone := map[string]string{}
	for name, stall := range stalls {
		for how, leave := range departures {
			r := stall(t, v)
			leave(r)
			gone[r.local()] = name + ", " + how
		}
	}
	v.unharmed(t)
	for peer, name := range gone {
		t.Run(name, func(t *testing.T) { v.log.requireRefused(t, peer, pipe.ErrHandshake) })
	}
	v.quiet(t)
	v.alive(t)
}

// One connection of an open pipe is reset.
func TestConnectionReset(t *testing.T) {
	inBothRoles(t, connectionReset)
}

func connectionReset(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for _, conn := range []string{"descriptor", "reply", "channel basic"} {
		t.Run(conn, func(t *testing.T) {
			a := open(t)
			a.conn(conn).reset()
			requireBroken(t, a.pipe, conn, pipe.ErrPeerLost)
			v.unharmed(t)
		})
		t.Run(conn+", with calls under way", func(t *testing.T) {
			a := open(t)
			write := a.pipe.WriteAsync(t.Context(), asking())
			in := a.announceTensor()
			read := make(chan error, 1)
			go func() { read <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
			a.conn(conn).reset()
			requireError(t, <-read, conn, pipe.ErrPeerLost)
			requireError(t, write.Wait(t.Context()), conn, pipe.ErrPeerLost)
			requireBroken(t, a.pipe, conn, pipe.ErrPeerLost)
			v.unharmed(t)
		})
	}
}

// One connection ends in good order and the others do not: that is a
// connection lost, not a peer that closes.
func TestConnectionEndsAlone(t *testing.T) {
	t.Parallel()
	inBothRoles(t, connectionEndsAlone, impatient)
}

func connectionEndsAlone(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for how, leave := range departures {
		if how == "resetting" {
			continue
		}
		for _, conn := range []string{"reply", "channel basic"} {
			t.Run(conn+", "+how, func(t *testing.T) {
				a := open(t)
				leave(a.conn(conn))
				requireBroken(t, a.pipe, conn, pipe.ErrPeerLost)
				v.unharmed(t)
			})
		}
	}
}

// The end of the descriptor connection is the end of messages: both Next and
// Write say so.
func TestDescriptorConnectionEnds(t *testing.T) {
	t.Parallel()
	inBothRoles(t, descriptorConnectionEnds, impatient)
}

func descriptorConnectionEnds(t *testing.T, v *victim, open func(testing.TB) *attack) {
	a := open(t)
	exchangePayload(t, a)
	require.NoError(t, a.desc.CloseWrite())
	_, err := a.pipe.Next(t.Context())
	requireError(t, err, "descriptor", pipe.ErrPeerClosed)
	requireError(t, a.pipe.Write(t.Context(), asking()), "descriptor", pipe.ErrPeerClosed)
	requireError(t, a.pipe.Close(), "", pipe.ErrCloseTimeout)
	v.unharmed(t)
}

// A peer that closes everything is gone in peace.
func TestPeerCloses(t *testing.T) {
	inBothRoles(t, peerCloses)
}

func peerCloses(t *testing.T, v *victim, open func(testing.TB) *attack) {
	a := open(t)
	a.hangUp()
	_, err := a.pipe.Next(t.Context())
	requireError(t, err, "descriptor", pipe.ErrPeerClosed)
	require.NoError(t, a.pipe.Close())
	v.unharmed(t)
}

// While the victim closes a pipe, the peer goes on as if nothing had happened,
// and then ends it one way or another.
func TestFramesAfterClose(t *testing.T) {
	inBothRoles(t, framesAfterClose)
}

func framesAfterClose(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for name, last := range map[string]func(a *attack){
		"then closes":          func(a *attack) { a.hangUp() },
		"then resets":          func(a *attack) { a.desc.reset() },
		"then sends garbage":   func(a *attack) { a.desc.frame([]byte("garbage")) },
		"then claims too much": func(a *attack) { a.desc.header(1 << 62) },
		"then replies":         func(a *attack) { a.reply.frame(goodReply()) },
	} {
		t.Run(name, func(t *testing.T) {
			a := open(t)
			require.NoError(t, <-a.afterClose(last))
			requireClosed(t, a)
			v.unharmed(t)
		})
	}
}

// The same with a peer that does not come to an end.
func TestFramesAfterCloseForEver(t *testing.T) {
	t.Parallel()
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for name, last := range map[string]func(a *attack){
			"stays":                       func(*attack) {},
			"stops in the midst of one":   func(a *attack) { a.desc.frame(payloadDescriptor(1 << 20)) },
			"lacks the tensors announced": func(a *attack) { a.desc.frame(tensorDescriptor(8, 9)) },
		} {
			t.Run(name, func(t *testing.T) {
				a := open(t)
				requireError(t, <-a.afterClose(last), "", pipe.ErrCloseTimeout)
				requireClosed(t, a)
				v.unharmed(t)
			})
		}
	}, impatient)
}

// afterClose closes the pipe at the victim's end, goes on sending, and passes
// on what Close returns.
func (a *attack) afterClose(last func(a *attack)) <-chan error {
	a.sendMessage(5)
	closed := make(chan error, 1)
	go func() { closed <- a.pipe.Close() }()
	a.desc.ended() // the victim has ended its side
	for n := range uint64(40) {
		a.sendMessage(n << 4)
	}
	last(a)
	return closed
}

func requireClosed(t testing.TB, a *attack) {
	t.Helper()
	_, err := a.pipe.Next(t.Context())
	requireError(t, err, "", pipe.ErrClosed)
}

// sendMessage sends one with a payload and a tensor of n bytes each.
func (a *attack) sendMessage(n uint64) {
	d := decodeDescriptor(a.desc.t, goodDescriptor())
	d.Payloads[0].Length, d.Tensors[0].Length = n, n
	a.desc.frame(d.Append(nil))
	a.desc.frame(make([]byte, n))
	if n > 0 {
		a.basic.frame(make([]byte, n))
	}
}

// A peer that has stopped reading cannot keep Close from ending.
func TestCloseWhilePeerDoesNotRead(t *testing.T) {
	t.Parallel()
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		big := message(1)
		big.Payloads[0].Data = make([]byte, 64<<20)
		op := a.pipe.WriteAsync(t.Context(), big)
		a.desc.read() // the descriptor; the payload fills all buffers
		v.unharmed(t)
		requireError(t, a.pipe.Close(), "", pipe.ErrCloseTimeout)
		err := op.Wait(t.Context())
		require.True(t, errors.Is(err, pipe.ErrClosed), "%v", err)
		v.unharmed(t)
	}, impatient)
}
