package pipe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// opening holds the connections of a pipe while it is being opened, and closes
// them when the time for that runs out: that is what ends blocked reads and
// writes of the handshake.
type opening struct {
	ctx   context.Context
	stop  func() bool // watching ctx; false if ctx has ended
	phase phase       // of the goroutine that opens

	mu    sync.Mutex
	conns []transport.Conn
	ended bool
}

func newOpening(ctx context.Context) *opening {
	o := &opening{ctx: ctx}
	o.stop = context.AfterFunc(ctx, o.closeAll)
	return o
}

// add puts a connection under the opening's care.
func (o *opening) add(c transport.Conn) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		c.Close()
		return context.Cause(o.ctx)
	}
	o.conns = append(o.conns, c)
	return nil
}

// dial opens one more connection of the pipe.
func (o *opening) dial(t transport.Transport, addr string) (transport.Conn, error) {
	c, err := t.Dial(o.ctx, addr)
	if err != nil {
		if end, ok := o.ctx.Deadline(); ok && !time.Now().Before(end) {
			<-o.ctx.Done() // transports may notice the deadline before ctx itself does
		}
		return nil, err
	}
	return c, o.add(c)
}

// settle ends the opening's care for its connections: they belong to the pipe
// now. It fails if time ran out.
func (o *opening) settle() error {
	o.stop()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return context.Cause(o.ctx)
	}
	o.ended = true
	o.conns = nil
	return nil
}

// abandon closes everything. It does nothing after settle.
func (o *opening) abandon() {
	o.stop()
	o.closeAll()
}

func (o *opening) closeAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	for _, c := range o.conns {
		c.Close()
	}
	o.conns = nil
}

// linger gives the opening a moment more when this end closes: the peer thinks
// the pipe open, and would else lose it without a word.
func (o *opening) linger() {
	if !o.stop() {
		return
	}
	closing, settled := o.ctx, make(chan struct{})
	ctx, end := context.WithCancelCause(context.WithoutCancel(closing))
	unwatch := context.AfterFunc(closing, func() {
		cause := context.Cause(closing)
		if errors.Is(cause, ErrClosed) {
			wait(settled, goodbyeWait)
		}
		end(cause)
	})
	unclose := context.AfterFunc(ctx, o.closeAll)
	settle := sync.OnceFunc(func() { close(settled) })
	o.ctx = ctx
	o.stop = func() bool {
		unwatch()
		settle()
		return unclose()
	}
}

// wait waits for done to be closed, and not longer than d.
func wait(done <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	}
}

// explain turns an error of the handshake into one that says why it failed:
// where time ran out or the caller gave up, that is the cause, and the phase says
// what was waited for. Of err there is then the text alone: what the connections
// say that were closed for that reason must not match.
func (o *opening) explain(err error) error {
	cause := context.Cause(o.ctx)
	switch {
	case cause == nil:
		return fmt.Errorf("%w: %w", ErrHandshake, err)
	case errors.Is(err, ErrClosed), errors.Is(err, cause):
		return fmt.Errorf("%w: %w while %s", ErrHandshake, cause, o.phase)
	}
	return fmt.Errorf("%w: %w while %s: %v", ErrHandshake, cause, o.phase, err)
}
