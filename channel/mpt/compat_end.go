package mpt

import (
	"context"
	"errors"
	"io"
	"time"
)

// lastLimit is for how long lanes may still come behind the end of the control
// connection, and how long behind a refusal of lanes that end may come. An end that is
// gone, and will never open them, looks the same, and is to be an error within a second,
// on a busy machine too.
const lastLimit = 500 * time.Millisecond

// attend waits for the end of the control connection. An orderly one says that
// both ends have given their lanes all that they had to send, but not that all of
// it has arrived: the peer may not even have accepted, or dialled, each lane. So
// they are ended one by one, behind what they carry.
func (e *compatEnd) attend() {
	if err := e.watch(); !errors.Is(err, io.EOF) {
		e.life.Fail(e.explain(err))
		return
	}
	close(e.quiet)
	late := time.NewTimer(e.factory.late)
	defer late.Stop()
	select {
	case <-e.opened:
		for _, l := range e.lanes {
			e.life.Go(func() { _ = l.conn.CloseWrite() }) // the reader finds out what is wrong with it
		}
		e.oneEnded()
	case <-late.C:
		e.life.Fail(e.explain(io.EOF))
	case <-e.life.Context().Done():
	}
}

// unlessQuiet is err, of lanes that could not be dialled, or the end of the control
// connection if that comes soon: an end that is gone refuses its lanes as well.
func (e *compatEnd) unlessQuiet(ctx context.Context, err error) error {
	soon := time.NewTimer(e.factory.late)
	defer soon.Stop()
	select {
	case <-e.quiet:
	case <-soon.C:
	case <-ctx.Done():
	}
	if e.hushed() {
		return io.EOF
	}
	return err
}

// laneEnded is what a lane calls at its end.
func (e *compatEnd) laneEnded(err error) {
	if errors.Is(err, io.EOF) {
		e.oneEnded()
	} else {
		e.life.Fail(err)
	}
}

// oneEnded notes that the peer has ended a lane, or the control connection, in an
// orderly way. The channel is over with the last of them.
func (e *compatEnd) oneEnded() {
	if e.left.Add(-1) == 0 {
		e.life.Fail(e.explain(io.EOF))
	}
}
