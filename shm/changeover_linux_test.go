package shm

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// unheard is a connection to a peer that rings, and has let doorbells come together
// until no more fit into its socket.
func unheard(t *testing.T) (*stranger, *conn) {
	t.Helper()
	l := listen(t)
	s := newStranger(t, l)
	inbox, err := createInbox()
	require.NoError(t, err)
	t.Cleanup(inbox.close)
	inbox.word().Store(doorbells)
	s.inbox = inbox
	c := s.shake(t, l, 0, 1).(*conn)
	require.True(t, c.rings)
	var full error
	require.NoError(t, c.raw.Control(func(fd uintptr) {
		for full == nil {
			full = unix.Send(int(fd), doorbell, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
	}))
	require.ErrorIs(t, full, unix.EAGAIN)
	return s, c
}

func multiplex(c *conn) <-chan error {
	return patience.Start(func() error {
		_, err := c.Multiplex(transport.SessionConfig{Streams: 1})
		return err
	})
}

// The peer hears of a session though it had a lot to hear before.
func TestChangeOverIsNotLost(t *testing.T) {
	leakcheck.Check(t)
	s, c := unheard(t)
	multiplexed := multiplex(c)
	patience.Asleep(t)
	heard := patience.Start(func() error {
		for what := []byte{somethingNew}; what[0] != changeOver; {
			if _, err := io.ReadFull(s, what); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, patience.Finish(t, heard))
	require.NoError(t, patience.Finish(t, multiplexed))
}

// One that never listens is given up.
func TestChangeOverUnheard(t *testing.T) {
	leakcheck.Check(t)
	_, c := unheard(t)
	c.hearing = time.Millisecond
	require.ErrorIs(t, patience.Finish(t, multiplex(c)), ErrProtocol)
}

// Who is gone is no error here: the session ends, as any does whose peer has gone.
func TestChangeOverToNobody(t *testing.T) {
	leakcheck.Check(t)
	dialled, accepted := connect(t, New())
	require.NoError(t, dialled.Close())
	s, err := accepted.Multiplex(transport.SessionConfig{Streams: 1})
	require.NoError(t, err)
	_, err = s.Accept(t.Context())
	require.ErrorIs(t, err, io.EOF)
}
