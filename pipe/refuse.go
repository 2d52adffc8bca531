package pipe

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A listening end that opens no pipe tells a dialling end of ours why, in the place of
// its choice. It chooses for both: what the dialling end requires it knows from the
// brochure.

// refusalKinds are the errors that a refusal may be for a program.
var refusalKinds = map[wire.RefusalKind]error{
	wire.RefusedByPolicy:    ErrPolicy,
	wire.RefusedByTransport: ErrNoTransport,
	wire.RefusedByDialect:   ErrDialect,
}

// refuse counts and logs the failure, sends the reason to a dialling end of ours, and
// waits until that end hangs up: closing earlier might lose the reason.
func (w *welcomer) refuse(first transport.Conn, reason error) {
	w.report(first, reason)
	answer := wire.NewRefusal(wire.Refusal{Kind: refusalKind(reason), Text: reason.Error()})
	if first.WriteFrames(transport.Frame{answer.Append(nil)}) == nil && first.CloseWrite() == nil {
		_, _ = first.NextFrame()
	}
}

// refusalKind is the first kind that an error is of.
func refusalKind(err error) wire.RefusalKind {
	for _, kind := range []wire.RefusalKind{wire.RefusedByPolicy, wire.RefusedByTransport, wire.RefusedByDialect} {
		if errors.Is(err, refusalKinds[kind]) {
			return kind
		}
	}
	return wire.RefusedOtherwise
}

// refusedBy is the dialling end's error where the other one refuses the pipe.
func (c *Context) refusedBy(r wire.Refusal) error {
	err := &refusedError{kind: refusalKinds[r.Kind], text: clipTo(r.Text, wire.MaxRefusal)}
	if r.Kind == wire.RefusedByTransport {
		return c.opts.Policy.Transports.blamed(err)
	}
	return err
}

// refusedError is a refusal in the words of the peer.
type refusedError struct {
	kind error // of this package, or nil
	text string
}

func (e *refusedError) Error() string { return "the listening end refuses the pipe: " + e.text }

func (e *refusedError) Unwrap() error { return e.kind }

// blamed makes err, that there is nothing to choose, one of the rule if that requires
// anything.
func (r Rule) blamed(err error) error {
	if len(r.Require) == 0 {
		return err
	}
	return fmt.Errorf("%w: required is %s: %w", ErrPolicy, r.required(), err)
}
