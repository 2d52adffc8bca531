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
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// introduced is a pipe of the first of two workers to the other one, that is about to be
// attached.
func introduced(ctx context.Context, t *testing.T) (group []*Agent, p *peer, line *pipe.Pipe, told terms) {
	group = insiders(t, 2, func(_ int, c *Config) { c.WorldSize = 0 })
	require.NoError(t, group[0].refresh(ctx))
	p = group[0].peers.find("worker1")
	line, err := group[0].pipes.Dial(ctx, p.member.URLs[0])
	require.NoError(t, err)
	told, err = group[0].introduce(ctx, line, p)
	require.NoError(t, err)
	return group, p, line, told
}

// A worker that leaves the group while a pipe to it is being opened gets none, though it
// is there.
func TestHandshakeWithWhoHasLeft(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	group, p, line, told := introduced(ctx, t)
	require.Nil(t, p.accept(false, nil), "one of its own is on its way, too")
	waiting := patience.Start(func() error { _, err := p.connect(ctx); return err })
	require.NoError(t, group[0].roster.Remove(ctx, "worker1", group[1].incarnation))
	require.NoError(t, group[0].refresh(ctx))
	hasLeft := func(err error) {
		require.ErrorIs(t, err, ErrUnreachable)
		require.ErrorIs(t, err, ErrNoWorker)
		require.ErrorContains(t, err, "worker1 has left the group")
	}
	hasLeft(patience.Finish(t, waiting))
	_, err := p.attach(line, told)
	hasLeft(err)
	require.Nil(t, p.conn.Load())
	patience.Finish(t, line.Done())
	p.unaccept()
	_, err = p.connect(ctx)
	hasLeft(err)
	require.NotNil(t, p.accept(false, nil))
}

// A worker that ends a pipe before the other end has attached it has not got one.
func TestHandshakeThatWasEnded(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	group, p, line, told := introduced(ctx, t)
	theirs, err := group[1].peers.find("worker0").awaitCrossed(ctx)
	require.NoError(t, err)
	theirs.pipe.Abort(errors.New("tired"))
	patience.Finish(t, line.Done())
	_, err = p.attach(line, told)
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.ErrorContains(t, err, "tired")
	require.Nil(t, p.conn.Load())
	c, err := p.connect(ctx)
	require.NoError(t, err, "there may be another one")
	require.NotNil(t, c)
}

// A pipe that the other end has closed in order, which nobody here has noticed, does not
// fail a call: nothing of that has left, and there may be another pipe.
func TestCallOnAPipeThatWasClosed(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	unknown := NewFunc[None, None]("test.unknown")        // which the worker says itself
	word := appendText(appendHead(nil, cancel, 0, 1), "") // that goes by
	for name, call := range map[string]func(a *Agent) error{
		"call": func(a *Agent) error { _, err := unknown.Call(ctx, a, "worker1", None{}); return err },
		"go":   func(a *Agent) error { _, err := unknown.Go(ctx, a, "worker1", None{}).Wait(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			group, p, line, told := introduced(ctx, t)
			theirs, err := group[1].peers.find("worker0").awaitCrossed(ctx)
			require.NoError(t, err)
			closed := patience.Start(theirs.pipe.Close)
			for err == nil && ctx.Err() == nil { // until it is known here
				_, err = line.TryWrite(&pipe.Message{Metadata: word})
				runtime.Gosched()
			}
			require.ErrorIs(t, err, pipe.ErrPeerClosed)
			require.NoError(t, line.Err(), "it has ended in order")
			c := group[0].newConn(line, p, told) // nobody reads by it, and so nobody notices
			p.conn.Store(c)

			require.ErrorIs(t, call(group[0]), ErrNoFunction)
			require.NotSame(t, c, p.conn.Load())
			group[0].conns.Delete(c)
			line.Abort(nil)
			require.NoError(t, patience.Finish(t, closed))
		})
	}
}

// Who waits for the pipe that the other end opens is told when that came to nothing,
// whether it had begun to come before or not.
func TestCrossedPipeThatFails(t *testing.T) {
	for name, early := range map[string]bool{"before": true, "behind": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := (&Agent{base: t.Context()}).makePeer(roster.Member{Name: "worker1"})
				defer p.end(nil)
				if early {
					require.Nil(t, p.accept(false, nil))
				}
				told := make(chan error, 1)
				go func() {
					_, err := p.awaitCrossed(t.Context())
					told <- err
				}()
				synctest.Wait()
				if !early {
					require.Nil(t, p.accept(false, nil))
				}
				synctest.Wait()
				require.Empty(t, told, "it may still come")
				p.unaccept()
				require.ErrorIs(t, <-told, errCrossed)
			})
		})
	}
}
