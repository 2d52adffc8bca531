package agent

import "context"

// Typed is the messages of one type, which a worker serves that has a handler for it in
// Config.Handlers. Such requests are calls like those of a Func, but the handler
// decodes and answers them itself, and they carry a name that means what the type takes
// it for.
type Typed[A, R any] struct{ typ string }

// NewTyped names a type of messages. By custom it begins with the package that it
// belongs to; "agent." is this one.
func NewTyped[A, R any](typ string) Typed[A, R] { return Typed[A, R]{typ} }

// Type is the name of the type.
func (m Typed[A, R]) Type() string { return m.typ }

// Call sends a request and waits for the answer, as Func.Call does. The handler
// decodes an A and replies with a pointer to an R.
func (m Typed[A, R]) Call(ctx context.Context, a *Agent, to To, name string, args A, opts ...CallOption) (R, error) {
	var result R
	err := a.roundTrip(ctx, target{to: to, typ: m.typ, name: name, opts: opts}, &result, &args)
	return result, err
}

// Go is Call that does not wait for the answer, as Func.Go is.
func (m Typed[A, R]) Go(ctx context.Context, a *Agent, to To, name string, args A, opts ...CallOption) *Future[R] {
	return goCall[R](ctx, a, target{to: to, typ: m.typ, name: name, opts: opts}, &args)
}
