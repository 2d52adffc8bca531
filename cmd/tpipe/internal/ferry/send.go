package ferry

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Send offers the cargo to the receiver at the other end of p, sends it, and
// returns when the receiver has placed every file; p is then still open. After
// an error p is aborted.
//
// The error is a *FaultError if the receiver says what is wrong, one that
// matches ErrProtocol or ErrChecksum if it says something that cannot be, one
// about a file of this end (ErrChanged, or of package os), the cause of ctx, or
// that of the pipe.
func Send(ctx context.Context, p *pipe.Pipe, cargo *Cargo, w Watcher) error {
	s := &shipment{pipe: p, cargo: cargo, watch: w, sums: make([]*fileSum, cargo.Len())}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, func() { s.giveUp(context.Cause(ctx)) })
	defer stop()
	err := s.run()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.giveUp(err)
	}
	return err
}

// answerTime is how long a receiver may look for the files of an offer.
const answerTime = 30 * time.Second

// shipment is the sending end of one transfer. Aborting the pipe ends it: all
// calls on that return, and the receiver hears why.
type shipment struct {
	pipe   *pipe.Pipe
	cargo  *Cargo
	watch  Watcher
	ctx    context.Context // ends with the transfer
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	sums []*fileSum // of the files of which everything has been written
}

func (s *shipment) giveUp(err error) {
	s.pipe.Abort(err)
	s.cancel(err)
}

func (s *shipment) run() error {
	if err := s.propose(); err != nil {
		return err
	}
	s.watch.Accepted(s.cargo.Len(), s.cargo.Bytes)
	sent := make(chan error, 1)
	go func() { sent <- s.stream() }()
	err := s.await()
	// A receiver that found a fault says so before it closes the pipe, and what it
	// says counts more than what becomes of the writes then.
	said := err != nil && !broken(err) && s.ctx.Err() == nil
	if err != nil {
		s.giveUp(err) // a write may wait for a receiver that will not read it
	}
	sendErr := <-sent
	if said || sendErr == nil || broken(sendErr) {
		return err
	}
	return sendErr
}

// broken reports whether an error tells that the pipe is down, which shows to
// all who use it.
func broken(err error) bool {
	return errors.Is(err, pipe.ErrPeerClosed) || errors.Is(err, pipe.ErrPeerLost)
}

// propose makes the offer and waits for the receiver to accept it.
func (s *shipment) propose() error {
	m, err := say(s.cargo.offer())
	if err != nil {
		return err
	}
	// A receiver may say why it serves nobody before it has heard anything.
	if err := s.pipe.Write(context.Background(), m); err != nil && !broken(err) {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), answerTime, brokenf("no answer to the offer within %s", answerTime))
	defer cancel()
	a, err := nextAnswer(ctx, s.pipe)
	switch {
	case err != nil:
		return cmp.Or(context.Cause(ctx), err)
	case !a.Accepted:
		return brokenf("no answer to the offer")
	}
	return nil
}

// await waits until the receiver has placed everything.
func (s *shipment) await() error {
	for range s.cargo.items {
		a, err := nextAnswer(context.Background(), s.pipe)
		if err != nil {
			return err
		}
		if a.Placed == nil {
			return brokenf("an answer that says nothing")
		}
		if err := s.confirm(a.Placed); err != nil {
			return err
		}
	}
	return nil
}

// confirm takes the receiver's word that a file is in place.
func (s *shipment) confirm(a *fileAnswer) error {
	if a.File < 0 || a.File >= len(s.sums) {
		return brokenf("file %d placed of %d", a.File, len(s.sums))
	}
	s.mu.Lock()
	sum := s.sums[a.File]
	s.sums[a.File] = nil
	s.mu.Unlock()
	it := s.cargo.items[a.File]
	switch {
	case sum == nil:
		return brokenf("%s was placed before it was sent, or twice", it.name)
	case sum.total() != a.CRC:
		return about(it.name, ErrChecksum)
	}
	s.watch.Placed(File{it.name, it.bytes, it.tensors, a.CRC})
	return nil
}

// written notes the sum of a file, just before its last message is written.
func (s *shipment) written(file int, sum *fileSum) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sums[file] = sum
}
