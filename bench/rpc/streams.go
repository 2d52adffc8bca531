package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Flow describes the values that one end of a stream sends.
type Flow struct{ Length, Size int }

// The streams that are measured. Values sends the values that its argument describes, Collect
// receives values and returns the number of their bytes, and Mirror sends each value back.
var (
	Values  = agent.NewServerStream[Flow, []byte]("bench.values")
	Collect = agent.NewClientStream[[]byte, int]("bench.collect")
	Mirror  = agent.NewBidiStream[[]byte, []byte]("bench.mirror")
)

// streamFuncs are the functions that serve the streams.
var streamFuncs = agent.Funcs{
	Values.Serve(func(_ context.Context, f Flow, out *agent.SendStream[[]byte]) error {
		value := make([]byte, f.Size)
		for range f.Length {
			if err := out.Send(value); err != nil {
				return err
			}
		}
		return nil
	}),
	Collect.Serve(func(_ context.Context, in iter.Seq2[[]byte, error]) (int, error) {
		n := 0
		for value, err := range in {
			if err != nil {
				return 0, err
			}
			n += len(value)
		}
		return n, nil
	}),
	Mirror.Serve(func(_ context.Context, s *agent.Stream[[]byte, []byte]) error {
		for value, err := range s.Receive() {
			if err != nil {
				return err
			}
			if err := s.Send(value); err != nil {
				return err
			}
		}
		return nil
	}),
}

// receiveValues opens a stream and receives the values of f from the worker to. The error is that of
// the stream, or that the number or the sizes of the values are not those of f.
func receiveValues(ctx context.Context, a *agent.Agent, to agent.To, f Flow) error {
	n := 0
	for value, err := range Values.Call(ctx, a, to, f) {
		if err == nil && len(value) != f.Size {
			err = fmt.Errorf("value %d has %d bytes", n, len(value))
		}
		if err != nil {
			return err
		}
		n++
	}
	if n != f.Length {
		return fmt.Errorf("of %d values %d arrived", f.Length, n)
	}
	return nil
}

// sendValues opens a stream, sends the values of f to the worker to, and waits until it has counted
// their bytes. The error is that of the stream, or that the number of bytes is not that of f.
func sendValues(ctx context.Context, a *agent.Agent, to agent.To, f Flow) error {
	s, err := Collect.Open(ctx, a, to)
	if err != nil {
		return err
	}
	value := make([]byte, f.Size)
	for range f.Length {
		if err := s.Send(value); err != nil {
			s.Cancel(err)
			return err
		}
	}
	n, err := s.CloseAndReceive()
	if err == nil && n != f.Length*f.Size {
		err = fmt.Errorf("of %d bytes %d arrived", f.Length*f.Size, n)
	}
	return err
}

// openEcho opens a stream to the worker to. echo sends a value of size bytes on it and receives the
// same value; it ignores its context. end ends the stream, must be called, and returns the error of
// the handler. The error of openEcho is that of opening the stream.
func openEcho(ctx context.Context, a *agent.Agent, to agent.To, size int) (echo func(context.Context) error, end func() error, err error) {
	s, err := Mirror.Open(ctx, a, to)
	if err != nil {
		return nil, nil, err
	}
	next, stop := iter.Pull2(s.Receive())
	value := make([]byte, size)
	echo = func(context.Context) error {
		if err := s.Send(value); err != nil {
			return err
		}
		got, err, ok := next()
		switch {
		case !ok:
			return io.ErrUnexpectedEOF
		case err == nil && len(got) != size:
			err = fmt.Errorf("of %d bytes %d returned", size, len(got))
		}
		return err
	}
	end = func() error {
		defer stop()
		err := s.CloseSend()
		_, last, _ := next()
		return errors.Join(err, last)
	}
	return echo, end, nil
}
