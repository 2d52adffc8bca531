package agent

import (
	"context"
	"iter"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
)

// SendStream is the sending half of a stream of values of type T. Its methods may be called
// concurrently with those of the receiving half.
type SendStream[T any] struct{ stream *stream }

// Send sends value. At the caller it blocks until the handler has started, and at both ends until
// the receiver has used enough of the earlier values, see Limits.StreamBytes: a value of up to 32
// KiB needs as much credit as it counts bytes, a larger one 32 KiB. A value of more than 64 KiB, or
// 2 MiB through shared memory, is sent when the receiver asks for it, or over TCP earlier, see
// pipe.Options.NoEager. When Send returns, the memory
// of value is free; the receiver may not have it yet. Values without tensors of up to 1 KiB that
// follow each other at once are sent together, when they fill a message, when this end waits for
// the stream, or when another goroutine has run, which is soon unless all processors are busy.
//
// At the caller Send returns io.EOF once the handler has returned; receiving then returns the
// result or the error of the handler. Other errors are *Error. They match ErrArguments, in a
// handler ErrResult, if value cannot be encoded, after which the stream goes on, and ErrSendClosed
// after the end of sending. Otherwise the stream has failed, and the error wraps the reason: for
// example ErrTimeout if the stream was idle or the deadline of its context has passed,
// ErrUnreachable, ErrClosed, the cause of the context, the cause given to Cancel, or in a handler
// ErrCallerGone. Concurrent calls of Send wait for each other.
func (s *SendStream[T]) Send(value T) error { return sendOn(s.stream, value) }

// Stream is one end of a stream that sends values of type S and receives values of type R. One
// goroutine may send while another one receives.
type Stream[S, R any] struct{ SendStream[S] }

// Receive returns the values that the other end sends, in their order:
//
//	for value, err := range stream.Receive() {
//
// The sequence ends after the last value, or after one pair with an error. At the caller that is
// the error of the handler, if it returned one. At both ends it is the error of a failed stream,
// see SendStream.Send, or for a value that cannot be decoded an error that matches ErrResult at the
// caller and ErrArguments in a handler. Each value is returned once. The credit for a value returns
// to the sender after the loop has asked for the next one. A value belongs to the receiver.
//
// A caller that leaves the loop cancels the stream. A handler that leaves the loop may begin
// another one, which continues with the next value; the stream ends when the handler returns.
func (s *Stream[S, R]) Receive() iter.Seq2[R, error] {
	if s.stream.call == nil {
		return receiveAll[R](s.stream)
	}
	return func(yield func(R, error) bool) {
		defer s.stream.fail(errLoopLeft) // without effect at the end of the stream
		receiveAll[R](s.stream)(yield)
	}
}

// ServerStream is the name of a function whose handler sends any number of values, with the types
// of its argument and of these values. Callers call the function with it; a worker serves the
// function by listing the result of Serve. See Func for names and types.
type ServerStream[A, R any] struct{ name string }

// NewServerStream returns the ServerStream with the given name, which callers and the worker that
// serves the function must both use.
func NewServerStream[A, R any](name string) ServerStream[A, R] { return ServerStream[A, R]{name} }

// Name returns the name of the function.
func (f ServerStream[A, R]) Name() string { return f.name }

// Call returns the values that the handler on the worker to sends:
//
//	for token, err := range Generate.Call(ctx, a, "worker1", prompt) {
//
// Each loop over the sequence makes a call. Leaving the loop cancels it: the context of the handler
// ends. The sequence ends when the handler has returned, and has its error, if any, as its last
// pair; the other errors are those of Func.Call. The memory of args is free when the first pair is
// returned or the loop has ended.
//
// The timeout, that of WithTimeout in opts or else the agent's default, is for idleness: the stream
// fails with a *TimeoutError when either end has waited for so long and nothing has moved. The
// deadline of ctx bounds the whole stream. With the option WithRetry, WithIdempotencyKey, WithInto
// or WithIntoFunc the call fails with an error that matches ErrConfig. Interceptors see the request
// that opens the stream, and the reply that ends it, but not the values in between.
func (f ServerStream[A, R]) Call(ctx context.Context, a *Agent, to To, args A, opts ...CallOption) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		s, err := a.openStream(ctx, target{to: to, typ: wire.StreamServer, name: f.name, opts: opts}, &args, nil, true)
		if err != nil {
			var zero R
			yield(zero, err)
			return
		}
		defer s.fail(errLoopLeft) // without effect at the end of the stream
		receiveAll[R](s)(yield)
	}
}

// Serve returns an entry for Config.Funcs: the worker serves the function by calling fn for each
// stream, concurrently. fn sends values with out, which is valid until fn returns; then the stream
// ends with the error of fn, if any. The context of fn ends when the caller leaves its loop, dies,
// or the stream fails. fn owns its argument. A call of fn takes one of Config.MaxHandlers, also
// while it waits in Send. If fn is nil, or opts has WithShort, WithOnce, WithBorrowedArgs or
// WithArgsInto, Join fails with an error that matches ErrConfig.
func (f ServerStream[A, R]) Serve(fn func(ctx context.Context, args A, out *SendStream[R]) error, opts ...ServeOption) Served {
	open := func(r *Request) (func(context.Context, *stream) (any, error), error) {
		var args A
		if err := decodeArgs(r, &args); err != nil {
			return nil, err
		}
		return func(ctx context.Context, s *stream) (any, error) {
			return &None{}, fn(ctx, args, &SendStream[R]{s})
		}, nil
	}
	return newServedStreamFunc(f.name, fn != nil, streamHandler{wire.StreamServer, open}, opts)
}

// ClientStream is the name of a function whose caller sends any number of values of type M, and
// whose handler returns one result of type R. See ServerStream.
type ClientStream[M, R any] struct{ name string }

// NewClientStream returns the ClientStream with the given name, which callers and the worker that
// serves the function must both use.
func NewClientStream[M, R any](name string) ClientStream[M, R] { return ClientStream[M, R]{name} }

// Name returns the name of the function.
func (f ClientStream[M, R]) Name() string { return f.name }

// ClientStreamCall is the caller's end of a ClientStream. The caller must call CloseAndReceive or
// Cancel, or end the context.
type ClientStreamCall[M, R any] struct {
	SendStream[M]
	result *R
}

// Open opens a stream to the worker that to addresses. It does not wait until the handler has
// started; the first Send does. The stream ends when ctx ends. The timeout, the options and what
// interceptors see are as for ServerStream.Call; the error is that of Func.Call, and the stream is
// then nil.
func (f ClientStream[M, R]) Open(ctx context.Context, a *Agent, to To, opts ...CallOption) (*ClientStreamCall[M, R], error) {
	c := &ClientStreamCall[M, R]{result: new(R)}
	var err error
	if c.stream, err = a.openStream(ctx, target{to: to, typ: wire.StreamClient, name: f.name, opts: opts}, &None{}, c.result, false); err != nil {
		return nil, err
	}
	return c, nil
}

// CloseAndReceive ends the sending, waits until the handler has returned, and returns the result of
// the handler, which belongs to the caller. The error is that of the handler, matches ErrResult if
// the result cannot be decoded, or is that of a failed stream, see SendStream.Send; the result must
// then not be used.
func (c *ClientStreamCall[M, R]) CloseAndReceive() (R, error) {
	err := c.stream.closeSend()
	if err == nil {
		err = c.stream.receiveEnd()
	}
	return *c.result, err
}

// Cancel ends the stream with cause, unless the stream has ended: the context of the handler ends,
// and methods that wait for the stream fail with an *Error that wraps cause, which must not be nil.
func (c *ClientStreamCall[M, R]) Cancel(cause error) { c.stream.fail(cause) }

// Serve returns an entry for Config.Funcs: the worker serves the function by calling fn for each
// stream. in has the values that the caller sends, see Stream.Receive; fn may return before it has
// received all. The result of fn must not change until it was sent. For the context, the slot and
// the options see ServerStream.Serve.
func (f ClientStream[M, R]) Serve(fn func(ctx context.Context, in iter.Seq2[M, error]) (R, error), opts ...ServeOption) Served {
	open := func(r *Request) (func(context.Context, *stream) (any, error), error) {
		run := func(ctx context.Context, s *stream) (any, error) {
			result, err := fn(ctx, receiveAll[M](s))
			return &result, err
		}
		return run, decodeArgs(r, &None{})
	}
	return newServedStreamFunc(f.name, fn != nil, streamHandler{wire.StreamClient, open}, opts)
}

// BidiStream is the name of a function whose caller sends any number of values of type M, and whose
// handler sends any number of values of type R. See ServerStream.
type BidiStream[M, R any] struct{ name string }

// NewBidiStream returns the BidiStream with the given name, which callers and the worker that
// serves the function must both use.
func NewBidiStream[M, R any](name string) BidiStream[M, R] { return BidiStream[M, R]{name} }

// Name returns the name of the function.
func (f BidiStream[M, R]) Name() string { return f.name }

// BidiStreamCall is the caller's end of a BidiStream. The caller must receive until the end, leave
// the loop of Receive, call Cancel or end the context.
type BidiStreamCall[M, R any] struct{ Stream[M, R] }

// Open opens a stream to the worker that to addresses, see ClientStream.Open.
func (f BidiStream[M, R]) Open(ctx context.Context, a *Agent, to To, opts ...CallOption) (*BidiStreamCall[M, R], error) {
	s, err := a.openStream(ctx, target{to: to, typ: wire.StreamBidi, name: f.name, opts: opts}, &None{}, nil, true)
	if err != nil {
		return nil, err
	}
	return &BidiStreamCall[M, R]{Stream[M, R]{SendStream[M]{s}}}, nil
}

// CloseSend ends the sending: the handler's loop over the values ends after the last one. It waits
// until the handler has started, and while the pipe has no space. It returns nil if the sending has
// ended before or the handler has returned. The error is that of a failed stream, see
// SendStream.Send.
func (c *BidiStreamCall[M, R]) CloseSend() error { return c.stream.closeSend() }

// Cancel ends the stream with cause, unless the stream has ended: the context of the handler ends,
// and methods that wait for the stream fail with an *Error that wraps cause, which must not be nil.
func (c *BidiStreamCall[M, R]) Cancel(cause error) { c.stream.fail(cause) }

// Serve returns an entry for Config.Funcs: the worker serves the function by calling fn for each
// stream. fn sends and receives with s, which is valid until fn returns. For the context, the slot
// and the options see ServerStream.Serve.
func (f BidiStream[M, R]) Serve(fn func(ctx context.Context, s *Stream[R, M]) error, opts ...ServeOption) Served {
	open := func(r *Request) (func(context.Context, *stream) (any, error), error) {
		run := func(ctx context.Context, s *stream) (any, error) {
			return &None{}, fn(ctx, &Stream[R, M]{SendStream[R]{s}})
		}
		return run, decodeArgs(r, &None{})
	}
	return newServedStreamFunc(f.name, fn != nil, streamHandler{wire.StreamBidi, open}, opts)
}
