package hostile_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestClientClosesDuringHandshake checks that the victim's handshake fails if the client ends its
// connection at any step. The victim notices that while it reads. While it waits for further
// connections it may not, and the slot stays in use until the timeout.
func TestClientClosesDuringHandshake(t *testing.T) {
	t.Parallel()
	clientClosesDuringHandshake(t, newVictim(t, shortHandshakeTimeout))
}

func clientClosesDuringHandshake(t *testing.T, v *victim) {
	closedBy := map[string]string{}
	for name, stall := range stalls {
		for ending, endConn := range connEndings {
			r := stall(t, v)
			endConn(r)
			closedBy[r.local()] = name + ", " + ending
		}
	}
	v.requireHealthy(t)
	for peer, name := range closedBy {
		t.Run(name, func(t *testing.T) { v.log.requireRejected(t, peer, pipe.ErrHandshake) })
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestConnectionReset checks that a pipe and its blocked calls fail with ErrPeerLost if one of its
// connections is reset, whichever one that is.
func TestConnectionReset(t *testing.T) {
	inBothRoles(t, connectionReset)
}

func connectionReset(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for _, conn := range []string{"descriptor", "reply", "channel basic"} {
		t.Run(conn, func(t *testing.T) {
			a := open(t)
			a.conn(conn).reset()
			requireBroken(t, a.pipe, conn, pipe.ErrPeerLost)
			v.requireHealthy(t)
		})
		t.Run(conn+", with blocked calls", func(t *testing.T) {
			a := open(t)
			write := a.pipe.WriteAsync(t.Context(), twoOpenTargets())
			in := a.announceTensor()
			read := make(chan error, 1)
			go func() { read <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
			a.conn(conn).reset()
			requireError(t, <-read, conn, pipe.ErrPeerLost)
			requireError(t, write.Wait(t.Context()), conn, pipe.ErrPeerLost)
			requireBroken(t, a.pipe, conn, pipe.ErrPeerLost)
			v.requireHealthy(t)
		})
	}
}

// TestOneConnectionEnds checks that the victim takes the peer for lost, and not for closed, if one
// connection ends in order while the others stay.
func TestOneConnectionEnds(t *testing.T) {
	t.Parallel()
	inBothRoles(t, oneConnectionEnds, shortCloseTimeout)
}

func oneConnectionEnds(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for ending, endConn := range connEndings {
		if ending == "resetting" {
			continue
		}
		for _, conn := range []string{"reply", "channel basic"} {
			t.Run(conn+", "+ending, func(t *testing.T) {
				a := open(t)
				endConn(a.conn(conn))
				requireBroken(t, a.pipe, conn, pipe.ErrPeerLost)
				v.requireHealthy(t)
			})
		}
	}
}

// TestDescriptorConnectionEnds checks that Next and Write return an error after the peer has ended
// the descriptor connection, which ends its messages.
func TestDescriptorConnectionEnds(t *testing.T) {
	t.Parallel()
	inBothRoles(t, descriptorConnectionEnds, shortCloseTimeout)
}

func descriptorConnectionEnds(t *testing.T, v *victim, open func(testing.TB) *attack) {
	a := open(t)
	exchangePayload(t, a)
	require.NoError(t, a.desc.CloseWrite())
	_, err := a.pipe.Next(t.Context())
	requireError(t, err, "descriptor", pipe.ErrPeerClosed)
	requireError(t, a.pipe.Write(t.Context(), twoOpenTargets()), "descriptor", pipe.ErrPeerClosed)
	requireError(t, a.pipe.Close(), "", pipe.ErrCloseTimeout)
	v.requireHealthy(t)
}

// TestPeerCloses checks that the victim sees an orderly close of the pipe if the peer closes all
// connections.
func TestPeerCloses(t *testing.T) {
	inBothRoles(t, peerCloses)
}

func peerCloses(t *testing.T, v *victim, open func(testing.TB) *attack) {
	a := open(t)
	a.closeConns()
	_, err := a.pipe.Next(t.Context())
	requireError(t, err, "descriptor", pipe.ErrPeerClosed)
	require.NoError(t, a.pipe.Close())
	v.requireHealthy(t)
}

// TestFramesAfterClose checks that Close of the victim ends properly while the peer continues to
// send and then ends the pipe, in different ways.
func TestFramesAfterClose(t *testing.T) {
	inBothRoles(t, framesAfterClose)
}

func framesAfterClose(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for name, last := range map[string]func(a *attack){
		"then closes":          func(a *attack) { a.closeConns() },
		"then resets":          func(a *attack) { a.desc.reset() },
		"then sends garbage":   func(a *attack) { a.desc.frame([]byte("garbage")) },
		"then claims too much": func(a *attack) { a.desc.header(1 << 62) },
		"then replies":         func(a *attack) { a.reply.frame(goodReply()) },
	} {
		t.Run(name, func(t *testing.T) {
			a := open(t)
			require.NoError(t, <-a.afterClose(last))
			requireClosed(t, a)
			v.requireHealthy(t)
		})
	}
}

// TestPeerKeepsPipeOpenAfterClose checks that Close of the victim returns after its timeout, with
// ErrCloseTimeout, if the peer does not end the pipe or stops within a message.
func TestPeerKeepsPipeOpenAfterClose(t *testing.T) {
	t.Parallel()
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for name, last := range map[string]func(a *attack){
			"stays":                       func(*attack) {},
			"stops within a message":      func(a *attack) { a.desc.frame(payloadDescriptor(1 << 20)) },
			"lacks the tensors announced": func(a *attack) { a.desc.frame(tensorDescriptor(8, 9)) },
		} {
			t.Run(name, func(t *testing.T) {
				a := open(t)
				requireError(t, <-a.afterClose(last), "", pipe.ErrCloseTimeout)
				requireClosed(t, a)
				v.requireHealthy(t)
			})
		}
	}, shortCloseTimeout)
}

// afterClose makes the victim close the pipe, continues to send messages to it, calls last with a,
// and returns. The returned Go channel receives the result of the victim's Close.
func (a *attack) afterClose(last func(a *attack)) <-chan error {
	a.sendMessage(5)
	closed := make(chan error, 1)
	go func() { closed <- a.pipe.Close() }()
	a.desc.waitClosed() // the victim has ended its direction
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

// sendMessage sends the victim a complete message with a payload and a tensor of n bytes each.
func (a *attack) sendMessage(n uint64) {
	d := decodeDescriptor(a.desc.t, goodDescriptor())
	d.Payloads[0].Length, d.Tensors[0].Length = n, n
	a.desc.frame(d.Append(nil))
	a.desc.frame(make([]byte, n))
	if n > 0 {
		a.basic.frame(make([]byte, n))
	}
}

// TestCloseWhilePeerDoesNotRead checks that Close of the victim returns after its timeout, with
// ErrCloseTimeout, if the peer does not read a large message, and that the write of that message
// fails.
func TestCloseWhilePeerDoesNotRead(t *testing.T) {
	t.Parallel()
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		big := message(1)
		big.Payloads[0].Data = make([]byte, 64<<20)
		op := a.pipe.WriteAsync(t.Context(), big)
		a.desc.read() // the descriptor; the payload fills all buffers
		v.requireHealthy(t)
		requireError(t, a.pipe.Close(), "", pipe.ErrCloseTimeout)
		err := op.Wait(t.Context())
		require.True(t, errors.Is(err, pipe.ErrClosed), "%v", err)
		v.requireHealthy(t)
	}, shortCloseTimeout)
}
