package agent

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// dialPeer joins two workers in a dynamic group and performs the handshake of a pipe from the first
// to the second. It returns the workers, the first one's peer for the second, the open pipe pp,
// which is not attached to p, and the terms that the second has sent.
func dialPeer(ctx context.Context, t *testing.T) (group []*Agent, p *peer, pp *pipe.Pipe, told peerTerms) {
	group = joinInternal(t, 2, func(_ int, c *Config) { c.WorldSize = 0 })
	require.NoError(t, group[0].refresh(ctx))
	p = group[0].peers.find("worker1")
	pp, err := group[0].pipes.Dial(ctx, p.member.URLs[0])
	require.NoError(t, err)
	told, err = group[0].dialHandshake(ctx, pp, p)
	require.NoError(t, err)
	return group, p, pp, told
}

// A pipe to a worker that leaves the group during the handshake is not attached but ended, though
// the worker is still alive. Goroutines that wait for a pipe to it get an error that matches
// ErrNoWorker.
func TestHandshakeWithWorkerThatLeft(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	group, p, pp, told := dialPeer(ctx, t)
	require.Nil(t, p.tryAccept(false, nil), "the peer opens a pipe too")
	waiting := testwait.Start(func() error { _, err := p.connect(ctx); return err })
	require.NoError(t, group[0].roster.Remove(ctx, "worker1", group[1].incarnation))
	require.NoError(t, group[0].refresh(ctx))
	hasLeft := func(err error) {
		require.ErrorIs(t, err, ErrUnreachable)
		require.ErrorIs(t, err, ErrNoWorker)
		require.ErrorContains(t, err, "the worker has left the group")
	}
	hasLeft(testwait.Finish(t, waiting))
	_, err := p.setConn(pp, told)
	hasLeft(err)
	require.Nil(t, p.conn.Load())
	testwait.Finish(t, pp.Done())
	p.acceptDone()
	_, err = p.connect(ctx)
	hasLeft(err)
	require.NotNil(t, p.tryAccept(false, nil))
}

// setConn does not attach a pipe that has ended after the handshake, and returns the reason.
// Another pipe can be opened.
func TestPipeEndsAfterHandshake(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	group, p, pp, told := dialPeer(ctx, t)
	theirs, err := group[1].peers.find("worker0").awaitPeerDial(ctx)
	require.NoError(t, err)
	theirs.pipe.Abort(errors.New("tired"))
	testwait.Finish(t, pp.Done())
	_, err = p.setConn(pp, told)
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.ErrorContains(t, err, "tired")
	require.Nil(t, p.conn.Load())
	c, err := p.connect(ctx)
	require.NoError(t, err, "another pipe may be opened")
	require.NotNil(t, c)
}

// A call reaches the worker although the other end has closed the pipe and this end has not
// noticed: nothing of the call was sent on that pipe, and another pipe is opened.
func TestCallOnClosedPipe(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	unknown := NewFunc[None, None]("test.unknown") // the error of the worker itself
	word := wire.AppendCancel(nil, 1, "")          // ignored by the worker
	for name, call := range map[string]func(a *Agent) error{
		"call": func(a *Agent) error { _, err := unknown.Call(ctx, a, "worker1", None{}); return err },
		"go":   func(a *Agent) error { _, err := unknown.Go(ctx, a, "worker1", None{}).Wait(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			group, p, pp, told := dialPeer(ctx, t)
			theirs, err := group[1].peers.find("worker0").awaitPeerDial(ctx)
			require.NoError(t, err)
			closed := testwait.Start(theirs.pipe.Close)
			for err == nil && ctx.Err() == nil { // until this end notices
				_, err = pp.TryWrite(&pipe.Message{Metadata: word})
				runtime.Gosched()
			}
			require.ErrorIs(t, err, pipe.ErrPeerClosed)
			require.NoError(t, pp.Err(), "it was closed without an error")
			c := group[0].newConn(pp, p, told) // no read loop runs, so the end is not noticed
			p.conn.Store(c)

			require.ErrorIs(t, call(group[0]), ErrNoFunction)
			require.NotSame(t, c, p.conn.Load())
			group[0].conns.Delete(c)
			pp.Abort(nil)
			require.NoError(t, testwait.Finish(t, closed))
		})
	}
}

// awaitPeerDial returns errSimultaneousOpen when the pipe that the peer has opened fails, whether
// that pipe was accepted before or after the wait began.
func TestSimultaneousOpenFails(t *testing.T) {
	for name, early := range map[string]bool{"before": true, "behind": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := (&Agent{base: t.Context()}).newPeer(roster.Member{Name: "worker1"})
				defer p.cancel(nil)
				if early {
					require.Nil(t, p.tryAccept(false, nil))
				}
				told := make(chan error, 1)
				go func() {
					_, err := p.awaitPeerDial(t.Context())
					told <- err
				}()
				synctest.Wait()
				if !early {
					require.Nil(t, p.tryAccept(false, nil))
				}
				synctest.Wait()
				require.Empty(t, told, "it may still be attached")
				p.acceptDone()
				require.ErrorIs(t, <-told, errSimultaneousOpen)
			})
		})
	}
}

// A worker whose record in the store has no URL is unreachable.
func TestDialWithoutURLs(t *testing.T) {
	err := (&peer{}).dial(t.Context(), nil)
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorContains(t, err, "the worker has published no URL")
}
