package pipe

import (
	"context"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// lastCall is how long the listening end still waits for connections of a peer
// that has ended one: what it had opened before that is on its way.
const lastCall = 700 * time.Millisecond

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
	wait(ctx.Done(), lastCall)
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
