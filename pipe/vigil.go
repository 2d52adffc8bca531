package pipe

import (
	"context"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The listening end still waits a little for connections of a peer that has ended
// one: what it had opened before that is on its way, behind a packet that was lost
// and comes again after 200 ms. The time is taken in pieces, of which each begins
// when the last one was over, so that an end that stood still does not count that.
const (
	lastPiece  = 50 * time.Millisecond
	lastPieces = 6
)

// vigil is the reading of a connection that begins before anybody has use for what
// comes: the listening end of a handshake reads on one while it waits for others,
// because it hears in no other way that its peer has died. It takes in the header
// of one frame, and what came of that is the first thing that NextFrame returns.
type vigil struct {
	transport.Conn
	came chan struct{} // closed when the header is there, or will not be
	size int64
	err  error
	told bool // belongs to the reader
}

// keepVigil reads on conn, which must end with the handshake if that fails. Until
// stop is called, ctx ends if the connection does.
func (w *welcomer) keepVigil(conn transport.Conn) (v *vigil, ctx context.Context, stop func()) {
	v = &vigil{Conn: conn, came: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(w.opening.ctx)
	w.listener.context.work.Go(func() {
		v.size, v.err = conn.NextFrame()
		close(v.came)
		if v.err != nil {
			giveLastCall(ctx, cancel, v.err)
		}
	})
	return v, ctx, func() { cancel(nil) }
}

// giveLastCall cancels what waits for connections of a peer that has ended one,
// some time later.
func giveLastCall(ctx context.Context, cancel context.CancelCauseFunc, end error) {
	for range lastPieces {
		wait(ctx.Done(), lastPiece)
	}
	cancel(classify(midMessage(end)))
}

// NextFrame implements [transport.Conn].
func (v *vigil) NextFrame() (int64, error) {
	if v.told {
		return v.Conn.NextFrame()
	}
	<-v.came
	v.told = v.err == nil
	return v.size, v.err
}
