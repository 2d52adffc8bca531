package agent

import (
	"context"
	"errors"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// accept lets other workers in.
func (a *Agent) accept() {
	for {
		line, err := a.listener.Accept(a.base)
		if err != nil {
			return // it is closed
		}
		ctx, end := context.WithCancelCause(a.base)
		a.greetings.begin(greeting{line, end})
		if !a.spawn(func() { a.meet(ctx, line); end(nil) }) {
			end(ErrClosed)
			line.Abort(ErrClosed)
			return
		}
	}
}

// meet finds out who opened a pipe, and lets it call.
func (a *Agent) meet(ctx context.Context, line *pipe.Pipe) {
	defer a.greetings.over(line)
	ctx, cancel := context.WithTimeout(ctx, a.handshakeTimeout)
	defer cancel()
	p, t, err := a.welcome(ctx, line)
	if err != nil {
		a.turnAway(ctx, line, err)
		return
	}
	if p == a.own {
		if c := a.newConn(line, p, t); !c.read() {
			a.conns.Delete(c)
			line.Abort(ErrClosed)
		}
		return
	}
	if _, err := p.attach(line, t); err != nil {
		a.log.Debug("pipe not taken", "worker", p.info.Name, "error", err)
	}
	p.unaccept()
}

// turnAway ends a pipe that is not taken, once the other end has read why.
func (a *Agent) turnAway(ctx context.Context, line *pipe.Pipe, err error) {
	if !errors.Is(err, errCrossed) {
		a.log.Warn("worker turned away", "address", line.RemoteAddr(), "error", err)
		a.stats.turnedAway.Add(1)
	}
	if _, next := line.Next(ctx); next == nil {
		err = errors.Join(err, ErrProtocol) // it goes on talking
	}
	line.Abort(err)
}
