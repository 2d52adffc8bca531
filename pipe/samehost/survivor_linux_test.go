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

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// survivor is a context whose peers die, but for one.
type survivor struct {
	way      way
	dialect  string
	context  *pipe.Context
	listener *pipe.Listener
	url      string
	sibling  *pipe.Pipe // to a process that lives on
	before   leakcheck.Baseline

	accepting sync.WaitGroup
	mu        sync.Mutex
	over      []error // what became of pipes that were accepted
}

func newSurvivor(t *testing.T, w way, dialect string) *survivor {
	t.Helper()
	leakcheck.Check(t)
	c, err := w.newContext("survivor", dialect)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	s := &survivor{way: w, dialect: dialect, context: c}
	s.listener, s.url, err = w.listen(t.Context(), c)
	require.NoError(t, err)
	spawn(t, s.part(s.url, "reflect"), nil)
	s.sibling, err = s.listener.Accept(t.Context())
	require.NoError(t, err)
	w.requireWay(t, s.sibling)
	for _, m := range words() {
		require.NoError(t, ask(t.Context(), s.sibling, m))
	}
	if hasLanes(s.sibling) { // which are there before the first child is
		require.NoError(t, openLanes(t.Context(), s.sibling))
	}
	t.Cleanup(func() { s.sibling.Close() })
	return s
}

func (s *survivor) part(url, role string) string {
	return strings.Join([]string{onWay, s.way.name, s.dialect, url, role}, " ")
}

// settleIn notes what there is while only the sibling is there.
func (s *survivor) settleIn() { s.before = leakcheck.Begin() }

// accept reflects what all further peers say.
func (s *survivor) accept(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); s.accepting.Wait() })
	s.accepting.Go(func() {
		for {
			p, err := s.listener.Accept(ctx)
			if err != nil {
				return
			}
			err = s.outlive(ctx, p)
			s.mu.Lock()
			s.over = append(s.over, err)
			s.mu.Unlock()
		}
	})
}

// outlive uses a pipe to its end, and returns why it ended.
func (s *survivor) outlive(ctx context.Context, p *pipe.Pipe) error {
	err := reflect(ctx, p)
	if _, again := p.Next(ctx); again == nil {
		err = errors.Join(err, errors.New("another message came"))
	}
	return errors.Join(err, p.Close())
}

// fate is what came of one child.
type fate struct {
	ending
	n      int     // the point
	closed bool    // it had begun to close
	lanes  bool    // they had carried a tensor
	errs   []error // of its pipe, if it had one
	failed int     // handshakes that came to nothing meanwhile
	freed  time.Duration
}

// alone reports whether it ended before anybody could have noticed.
func (f fate) alone() bool { return len(f.errs) == 0 && f.failed == 0 }

// striping reports whether it ended while its lanes carried tensors.
func (f fate) striping() bool { return f.lanes && !f.closed }

// meet lives with a child to its end, and until nothing is left of it.
func (s *survivor) meet(t *testing.T, start executioner, listens bool, n int) fate {
	t.Helper()
	f := fate{n: n}
	failed := s.context.Stats().HandshakesFailed
	if listens {
		m := start(t, s.part("listen", "converse"), n)
		if url := patience.Finish(t, m.address); url != "" {
			f.errs = append(f.errs, s.dial(t, url))
		}
		f.ending = patience.Finish(t, m.ended)
		f.remember(m)
	} else {
		m := start(t, s.part(s.url, "converse"), n)
		f.ending = patience.Finish(t, m.ended)
		f.remember(m)
	}
	what := fmt.Sprint("point ", n, ", ", f.where)
	if !listens && f.dialled {
		s.notice(t, failed, what)
	}
	s.settle(t, what)
	f.freed = time.Since(f.at)
	f.failed = int(s.context.Stats().HandshakesFailed - failed)
	s.mu.Lock()
	f.errs = append(f.errs, s.over...)
	s.over = nil
	s.mu.Unlock()
	require.NoError(t, ask(t.Context(), s.sibling, words()[0]), "the sibling, point %d", n)
	return f
}

// remember is how far it had come, as it said.
func (f *fate) remember(m *mortal) {
	_, f.lanes = m.hasSaid(striped)
	_, f.closed = m.hasSaid(closing)
}

func (s *survivor) dial(t *testing.T, url string) error {
	p, err := s.context.Dial(t.Context(), url)
	if err != nil {
		return err
	}
	return s.outlive(t.Context(), p)
}

// notice waits until there is an error of a pipe with a child that dialled, or the
// listener has counted a handshake that failed.
func (s *survivor) notice(t *testing.T, failed uint64, what string) {
	t.Helper()
	noticed := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.over) > 0 || s.context.Stats().HandshakesFailed > failed
	}
	if !noticed() {
		require.Eventually(t, noticed, patience.Limit, time.Millisecond, what)
	}
}

// settle waits until the sibling is alone.
func (s *survivor) settle(t *testing.T, what string) {
	t.Helper()
	alone := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		now := s.context.Stats()
		return now.PipesOpen == 1 && now.HandshakesInProgress == 0
	}
	if !alone() {
		require.Eventually(t, alone, patience.Limit, time.Millisecond, what)
	}
	require.Empty(t, s.before.Leaks(), what)
}

// require checks that every error is one of those that a death may have: where the
// pipe was open [pipe.ErrPeerLost], or, where the dead one had begun to close it,
// [pipe.ErrPeerClosed]; and of a call of Dial that did not return a pipe
// [pipe.ErrHandshake], or that nobody listens any more.
func (f fate) require(t *testing.T, n int) {
	t.Helper()
	for _, err := range f.errs {
		var named *pipe.Error
		require.ErrorAs(t, err, &named, "point %d, %s", n, f.where)
		switch {
		case errors.Is(err, pipe.ErrPeerLost), errors.Is(err, pipe.ErrPeerClosed) && f.closed:
		case named.Op == "dial" && (errors.Is(err, pipe.ErrHandshake) || refusedToConnect(err)):
		default:
			require.NoError(t, err, "point %d, %s, closed: %t", n, f.where, f.closed)
		}
	}
}
