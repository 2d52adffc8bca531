package samehost_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// survivor is a context whose peers are killed, except for one sibling.
type survivor struct {
	route    route
	dialect  pipe.Dialect
	context  *pipe.Context
	listener *pipe.Listener
	url      string
	sibling  *pipe.Pipe // to a process that is not killed
	before   leakcheck.Baseline

	accepting sync.WaitGroup
	mu        sync.Mutex
	results   []error // the errors with which accepted pipes ended
}

func newSurvivor(t *testing.T, w route, dialect pipe.Dialect) *survivor {
	t.Helper()
	leakcheck.Check(t)
	c, err := w.newContext("survivor", dialect)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	s := &survivor{route: w, dialect: dialect, context: c}
	s.listener, s.url, err = w.listen(t.Context(), c)
	require.NoError(t, err)
	startChild(t, s.childArgs(s.url, "echo"), nil)
	s.sibling, err = s.listener.Accept(t.Context())
	require.NoError(t, err)
	w.requireRoute(t, s.sibling)
	for _, m := range testMessages() {
		require.NoError(t, sendAndCompare(t.Context(), s.sibling, m))
	}
	if hasLanes(s.sibling) { // opened before the baseline is recorded
		require.NoError(t, openLanes(t.Context(), s.sibling))
	}
	t.Cleanup(func() { s.sibling.Close() })
	return s
}

func (s *survivor) childArgs(url, role string) string {
	return strings.Join([]string{routeChild, s.route.name, string(s.dialect), url, role}, " ")
}

// recordBaseline records in s.before the resources that this process has open, so that waitClean
// can find leaks. At that time only the sibling may be connected, a process that stays connected
// during the whole test.
func (s *survivor) recordBaseline() { s.before = leakcheck.Begin() }

// accept starts a goroutine that accepts pipes until the end of the test, one after the other. It
// echoes the messages of each until the pipe ends, and appends the pipe's errors to s.results.
func (s *survivor) accept(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); s.accepting.Wait() })
	s.accepting.Go(func() {
		for {
			p, err := s.listener.Accept(ctx)
			if err != nil {
				return
			}
			err = s.useUntilEnd(ctx, p)
			s.mu.Lock()
			s.results = append(s.results, err)
			s.mu.Unlock()
		}
	})
}

// useUntilEnd echoes the messages of p until p ends, and then closes p. It returns the errors of
// the echo and of Close, joined, and an additional error if a message arrived after the end.
func (s *survivor) useUntilEnd(ctx context.Context, p *pipe.Pipe) error {
	err := echoMessages(ctx, p)
	if _, again := p.Next(ctx); again == nil {
		err = errors.Join(err, errors.New("a message arrived after the end"))
	}
	return errors.Join(err, p.Close())
}

// killResult describes how one child and the pipe to it ended.
type killResult struct {
	exitInfo
	n      int     // the point at which the child was to be killed
	closed bool    // the child had begun to close the pipe
	lanes  bool    // its lanes had carried a tensor
	errs   []error // of the pipe, if it was opened
	failed int     // handshakes that failed
	freed  time.Duration
}

// unnoticed reports whether this process had no pipe and no handshake with the child, so that the
// death of the child caused no error.
func (f killResult) unnoticed() bool { return len(f.errs) == 0 && f.failed == 0 }

// striping reports whether the child was killed while its lanes carried tensors: after they had
// begun to, and before the child began to close.
func (f killResult) striping() bool { return f.lanes && !f.closed }

// connect starts a child that is killed at point n, or runs to its end if n is 0. It uses the pipe
// to the child until the pipe ends, waits until all resources of this process are released, and
// returns the result, with the time that this took and all errors.
func (s *survivor) connect(t *testing.T, start starter, listens bool, n int) killResult {
	t.Helper()
	f := killResult{n: n}
	failed := s.context.Stats().HandshakesFailed
	if listens {
		m := start(t, s.childArgs("listen", "scenario"), n)
		if url := testwait.Finish(t, m.address); url != "" {
			f.errs = append(f.errs, s.dial(t, url))
		}
		f.exitInfo = testwait.Finish(t, m.ended)
		f.recordProgress(m)
	} else {
		m := start(t, s.childArgs(s.url, "scenario"), n)
		f.exitInfo = testwait.Finish(t, m.ended)
		f.recordProgress(m)
	}
	what := fmt.Sprint("point ", n, ", ", f.where)
	if !listens && f.dialled {
		s.waitNoticed(t, failed, what)
	}
	s.waitClean(t, what)
	f.freed = time.Since(f.at)
	f.failed = int(s.context.Stats().HandshakesFailed - failed)
	s.mu.Lock()
	f.errs = append(f.errs, s.results...)
	s.results = nil
	s.mu.Unlock()
	require.NoError(t, sendAndCompare(t.Context(), s.sibling, testMessages()[0]), "the sibling, point %d", n)
	return f
}

// recordProgress sets f.lanes if the child has printed that its lanes carry tensors, and f.closed
// if it has printed that it begins to close.
func (f *killResult) recordProgress(m *killableChild) {
	_, f.lanes = m.printed(striped)
	_, f.closed = m.printed(closing)
}

func (s *survivor) dial(t *testing.T, url string) error {
	p, err := s.context.Dial(t.Context(), url)
	if err != nil {
		return err
	}
	return s.useUntilEnd(t.Context(), p)
}

// waitNoticed blocks until this process has noticed the death of a child that dialled: the child's
// pipe has ended, or the context's number of failed handshakes is above the argument failed. It
// fails the test, with the text in what, if this takes too long.
func (s *survivor) waitNoticed(t *testing.T, failed uint64, what string) {
	t.Helper()
	noticed := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.results) > 0 || s.context.Stats().HandshakesFailed > failed
	}
	if !noticed() {
		require.Eventually(t, noticed, testwait.Limit, time.Millisecond, what)
	}
}

// waitClean blocks until the only open pipe is that of the sibling, a process that stays connected
// during the whole test, and no handshake is in progress. It then requires that no resource has
// leaked since recordBaseline. It fails the test, with the text in what, if this takes too long.
func (s *survivor) waitClean(t *testing.T, what string) {
	t.Helper()
	onlySibling := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		now := s.context.Stats()
		return now.PipesOpen == 1 && now.HandshakesInProgress == 0
	}
	if !onlySibling() {
		require.Eventually(t, onlySibling, testwait.Limit, time.Millisecond, what)
	}
	require.Empty(t, s.before.Leaks(), what)
}

// require fails the test if an error in f is not one that the death of the peer may cause. For an
// open pipe these are [pipe.ErrPeerLost], and [pipe.ErrPeerClosed] if the peer had begun to close.
// For Dial they are [pipe.ErrHandshake] and a refused connection.
func (f killResult) require(t *testing.T, n int) {
	t.Helper()
	for _, err := range f.errs {
		var named *pipe.Error
		require.ErrorAs(t, err, &named, "point %d, %s", n, f.where)
		switch {
		case errors.Is(err, pipe.ErrPeerLost), errors.Is(err, pipe.ErrPeerClosed) && f.closed:
		case named.Op == "dial" && (errors.Is(err, pipe.ErrHandshake) || connectRefused(err)):
		default:
			require.NoError(t, err, "point %d, %s, closed: %t", n, f.where, f.closed)
		}
	}
}
