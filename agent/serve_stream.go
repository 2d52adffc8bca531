package agent

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
)

// streamKinds names the types of requests that open a stream, for errors.
var streamKinds = map[string]string{
	wire.StreamServer: "server stream",
	wire.StreamClient: "client stream",
	wire.StreamBidi:   "bidirectional stream",
}

// isStreamType reports whether requests of the type typ open a stream.
func isStreamType(typ string) bool {
	return typ == wire.StreamServer || typ == wire.StreamClient || typ == wire.StreamBidi
}

// streamHandler serves a function that is a stream.
type streamHandler struct {
	typ string // of the requests that open it

	// open decodes the argument of a request and returns the task of the stream. The task returns
	// a pointer to the result.
	open func(r *Request) (func(ctx context.Context, s *stream) (result any, err error), error)
}

// newServedStream returns the called worker's end of the stream that the request r opens, whose
// handler is that of e. Until the handler starts the caller has no credit.
func newServedStream(r *Request, e *handlerEntry) *stream {
	s := &stream{conn: r.conn, id: r.id, served: r}
	window := 0
	if e.typ != wire.StreamServer {
		window = r.conn.agent.limits.StreamBytes
	}
	s.init(r.limit, window)
	return s
}

// Open implements Handler: it decodes the argument, and the window of the caller. The error matches
// ErrArguments or ErrProtocol.
func (h *streamHandler) Open(r *Request) (Task, error) {
	t := &streamTask{}
	var err error
	if t.run, err = h.open(r); err != nil {
		return nil, err
	}
	if data, ok := r.message.decoder.Header(wire.WindowHeader); ok && h.typ != wire.StreamClient {
		n, err := wire.ParseNumber(wire.WindowHeader, data)
		if err == nil {
			err = r.stream.addCredit(n)
		}
		if err != nil {
			return nil, err
		}
	}
	return t, nil
}

type streamTask struct {
	run func(ctx context.Context, s *stream) (result any, err error)
}

// Run implements Task: it lets the caller send, runs the handler and replies with its result or its
// error, which ends the stream. If ctx has ended before, Run does not run the handler and replies
// with the cause of ctx.
func (t *streamTask) Run(ctx context.Context, r *Request) {
	if err := ctxerr.Cause(ctx); err != nil { // the caller does not wait any more
		_ = r.Fail(err) // nothing else replies
		return
	}
	s := r.stream
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(s.ctx, s.discard)
	defer s.cancel(ErrSendClosed) // for goroutines that the handler has left
	if s.window > 0 {
		s.grant(s.window)
	}
	result, err := t.runHandler(s)
	if err != nil {
		r.failLogged(err)
		return
	}
	_ = r.Reply(result) // an error is the reply instead
}

// runHandler runs the handler and returns its result and error. The values that it has sent are
// written then, also if it panics, and it sends no others.
func (t *streamTask) runHandler(s *stream) (any, error) {
	defer s.endBatch()
	return t.run(s.ctx, s)
}

// newServedStreamFunc returns the entry for Config.Funcs by which the function with this name is
// served by h, with opts applied. If valid is false, since the function is nil, or opts has an
// option that streams do not have, the entry holds an error that matches ErrConfig, with which Join
// fails.
func newServedStreamFunc(name string, valid bool, h streamHandler, opts []ServeOption) Served {
	s := Served{entry: handlerEntry{name: name, stream: &h}}
	for _, set := range opts {
		set(&s)
	}
	switch {
	case !valid:
		s.err = fmt.Errorf("%w: %s: function is nil", ErrConfig, name)
	case s.entry.short || s.entry.once || s.entry.borrows || s.entry.place != nil:
		s.err = fmt.Errorf("%w: %s: WithShort, WithOnce, WithBorrowedArgs and WithArgsInto are not for streams", ErrConfig, name)
	}
	return s
}
