package agent_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var (
	count   = agent.NewServerStream[int, int]("test.count")
	total   = agent.NewClientStream[int, int]("test.total")
	doubles = agent.NewBidiStream[int, int]("test.doubles")
	scaled  = agent.NewBidiStream[*tensor.Tensor, *tensor.Tensor]("test.scaled")

	errTooMany = errors.New("too many")
)

// serveStreams adds the streams of these tests to the functions of c: count sends the numbers below
// its argument, and fails after 1000; total adds up; doubles and scaled answer each value with twice
// the value.
func serveStreams(_ int, c *agent.Config) {
	c.Funcs = append(c.Funcs,
		echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil }),
		count.Serve(func(_ context.Context, n int, out *agent.SendStream[int]) error {
			for i := range min(n, 1000) {
				if err := out.Send(i); err != nil {
					return err
				}
			}
			if n > 1000 {
				return errTooMany
			}
			return nil
		}),
		total.Serve(func(_ context.Context, in iter.Seq2[int, error]) (int, error) {
			sum := 0
			for n, err := range in {
				if err != nil {
					return 0, err
				}
				sum += n
			}
			return sum, nil
		}),
		doubles.Serve(func(_ context.Context, s *agent.Stream[int, int]) error {
			for n, err := range s.Receive() {
				if err != nil {
					return err
				}
				if err := s.Send(2 * n); err != nil {
					return err
				}
			}
			return nil
		}),
		scaled.Serve(func(_ context.Context, s *agent.Stream[*tensor.Tensor, *tensor.Tensor]) error {
			for x, err := range s.Receive() {
				if err != nil {
					return err
				}
				v, err := tensor.MutableData[float32](x)
				if err != nil {
					return err
				}
				for i := range v {
					v[i] *= 2
				}
				if err := s.Send(x); err != nil {
					return err
				}
			}
			return nil
		}),
	)
}

// collect returns the values of the sequence and its error, nil if it has none.
func collect[T any](all iter.Seq2[T, error]) (values []T, err error) {
	for value, err := range all {
		if err != nil {
			return values, err
		}
		values = append(values, value)
	}
	return values, nil
}

// useStreams opens streams of all three kinds from a to the worker to, and requires that all values
// arrive in order.
func useStreams(t *testing.T, a *agent.Agent, to agent.To) {
	t.Helper()
	values, err := collect(count.Call(t.Context(), a, to, 1000))
	require.NoError(t, err)
	require.Len(t, values, 1000)
	for i, n := range values {
		require.Equal(t, i, n)
	}
	sum, err := total.Open(t.Context(), a, to)
	require.NoError(t, err)
	for i := range 1000 {
		require.NoError(t, sum.Send(i))
	}
	n, err := sum.CloseAndReceive()
	require.NoError(t, err)
	require.Equal(t, 999*1000/2, n)
	both, err := doubles.Open(t.Context(), a, to)
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() {
		var err error
		for i := range 1000 {
			err = errors.Join(err, both.Send(i))
		}
		sent <- errors.Join(err, both.CloseSend())
	}()
	values, err = collect(both.Receive())
	require.NoError(t, err)
	require.NoError(t, testwait.Finish(t, sent))
	require.Len(t, values, 1000)
	for i, n := range values {
		require.Equal(t, 2*i, n)
	}
}

// All three kinds of streams deliver all values in order, over each path, also to the own worker.
func TestStreams(t *testing.T) {
	for name, listen := range map[string][]string{"shm": {"shm://"}, "uv": {"uv://127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			group := startGroup(t, 2, func(rank int, c *agent.Config) {
				c.Listen = listen
				serveStreams(rank, c)
			})
			useStreams(t, group[0], "worker1")
			useStreams(t, group[1], agent.Rank(1))
		})
	}
	t.Run("mem", func(t *testing.T) {
		simulate(t, 2, serveStreams, func(t *testing.T, group []*agent.Agent) { useStreams(t, group[0], "worker1") })
	})
}

// Tensors beyond the window, inline and not, arrive at both ends.
func TestStreamsOfLargeTensors(t *testing.T) {
	for name, listen := range map[string][]string{"shm": {"shm://"}, "uv": {"uv://127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			group := startGroup(t, 2, func(rank int, c *agent.Config) {
				c.Listen = listen
				c.Limits.StreamBytes = 1 << 16
				serveStreams(rank, c)
			})
			s, err := scaled.Open(t.Context(), group[0], "worker1")
			require.NoError(t, err)
			sizes := []int{1, 1 << 10, 1 << 14, 1 << 18, 1 << 21, 0, 3}
			sent := make(chan error, 1)
			go func() {
				var err error
				for i, n := range sizes {
					err = errors.Join(err, s.Send(filled(t, float32(i), n)))
				}
				sent <- errors.Join(err, s.CloseSend())
			}()
			i := 0
			for x, err := range s.Receive() {
				require.NoError(t, err)
				same, err := tensor.Equal(x, filled(t, 2*float32(i), sizes[i]))
				require.NoError(t, err)
				require.True(t, same, "tensor %d", i)
				i++
			}
			require.Equal(t, len(sizes), i)
			require.NoError(t, testwait.Finish(t, sent))
		})
	}
}

// The error of a handler arrives after its values, as with calls. Errors of the opening name what
// is wrong.
func TestStreamErrors(t *testing.T) {
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		serveStreams(rank, c)
		c.Registry = codec.NewRegistry()
		require.NoError(t, c.Registry.RegisterError("test.errTooMany", errTooMany))
	})
	values, err := collect(count.Call(t.Context(), group[0], "worker1", 2000))
	require.Len(t, values, 1000)
	require.ErrorIs(t, err, errTooMany)
	var remote *agent.RemoteError
	require.ErrorAs(t, err, &remote)
	var e *agent.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, agent.Error{Op: "call", Func: "test.count", Worker: "worker1", Err: e.Err}, *e)

	for text, c := range map[string]struct {
		all  iter.Seq2[int, error]
		kind error
	}{
		"test.none on worker1: not served: no server stream of that name":        {agent.NewServerStream[int, int]("test.none").Call(t.Context(), group[0], "worker1", 1), agent.ErrNoFunction},
		"test.total on worker1: not served: the name is that of a client stream": {agent.NewServerStream[int, int]("test.total").Call(t.Context(), group[0], "worker1", 1), agent.ErrNoFunction},
		"test.echo on worker1: not served: no server stream of that name":        {agent.NewServerStream[int, int](echo.Name()).Call(t.Context(), group[0], "worker1", 1), agent.ErrNoFunction},
		"test.count on worker1: wrong arguments":                                 {agent.NewServerStream[string, int]("test.count").Call(t.Context(), group[0], "worker1", "x"), agent.ErrArguments},
		"on nobody: no such worker in the group of worker0 (rank 0)":             {count.Call(t.Context(), group[0], "nobody", 1), agent.ErrNoWorker},
		"a stream cannot be repeated: WithRetry":                                 {count.Call(t.Context(), group[0], "worker1", 1, agent.WithRetry(agent.Retry{})), agent.ErrConfig},
		"a stream cannot be repeated":                                            {count.Call(t.Context(), group[0], "worker1", 1, agent.WithIdempotencyKey("k")), agent.ErrConfig},
		"not for streams":                                                        {count.Call(t.Context(), group[0], "worker1", 1, agent.WithInto()), agent.ErrConfig},
		"Timeout is -1ns":                                                        {count.Call(t.Context(), group[0], "worker1", 1, agent.WithTimeout(-1)), agent.ErrConfig},
	} {
		values, err := collect(c.all)
		require.Empty(t, values)
		require.ErrorIs(t, err, c.kind)
		require.ErrorContains(t, err, text)
	}
	_, err = agent.NewFunc[int, int]("test.count").Call(t.Context(), group[0], "worker1", 1)
	require.ErrorIs(t, err, agent.ErrNoFunction)
	require.ErrorContains(t, err, "test.count on worker1: not served: the name is that of a server stream")
	_, err = group[0].Invoke(t.Context(), "worker1", "test.count", 1)
	require.ErrorIs(t, err, agent.ErrNoFunction)

	_, err = collect(agent.NewServerStream[int, string]("test.count").Call(t.Context(), group[0], "worker1", 5))
	require.ErrorIs(t, err, agent.ErrResult)
	wrong, err := agent.NewClientStream[string, int]("test.total").Open(t.Context(), group[0], "worker1")
	require.NoError(t, err)
	for err = wrong.Send("x"); err == nil; {
		err = wrong.Send("x")
	}
	require.ErrorIs(t, err, io.EOF)
	_, err = wrong.CloseAndReceive()
	require.ErrorIs(t, err, agent.ErrArguments)
	require.ErrorIs(t, wrong.Send("x"), io.EOF)
}

// Options that streams do not have fail Join.
func TestStreamServeOptions(t *testing.T) {
	handler := func(context.Context, int, *agent.SendStream[int]) error { return nil }
	for _, served := range []agent.Served{
		count.Serve(nil), total.Serve(nil), doubles.Serve(nil),
		count.Serve(handler, agent.WithOnce()), count.Serve(handler, agent.WithShort()), count.Serve(handler, agent.WithBorrowedArgs()), count.Serve(handler, agent.WithArgsInto(keepIn(t, nil))),
	} {
		_, err := agent.Join(t.Context(), agent.Config{Name: "worker0", WorldSize: 1, Rendezvous: "tcp://127.0.0.1:0", Funcs: agent.Funcs{served}})
		require.ErrorIs(t, err, agent.ErrConfig)
	}
}

// After the end of sending, Send fails with ErrSendClosed, and CloseSend does nothing. A value that
// cannot be encoded does not end the stream.
func TestStreamSendErrors(t *testing.T) {
	group := startGroup(t, 2, serveStreams)
	any1 := agent.NewBidiStream[any, int]("test.doubles")
	s, err := any1.Open(t.Context(), group[0], "worker1")
	require.NoError(t, err)
	require.ErrorIs(t, s.Send(make(chan int)), agent.ErrArguments)
	require.NoError(t, s.CloseSend())
	require.NoError(t, s.CloseSend())
	require.ErrorIs(t, s.Send(1), agent.ErrSendClosed)
	values, err := collect(s.Receive())
	require.NoError(t, err)
	require.Empty(t, values)
}

// Values that a handler has sent arrive before it sends others, receives or returns, also if they
// wait to be sent together.
func TestValuesArriveWithoutOthers(t *testing.T) {
	const n = 100
	for name, listen := range map[string][]string{"shm": {"shm://"}, "uv": {"uv://127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			proceed := make(chan struct{})
			parts := agent.NewServerStream[int, string]("test.parts")
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				c.Listen = listen
				c.Funcs = agent.Funcs{parts.Serve(func(_ context.Context, n int, out *agent.SendStream[string]) error {
					for round := range 2 {
						for i := range n {
							if err := out.Send(strings.Repeat("x", i*round*20)); err != nil {
								return err
							}
						}
						<-proceed
					}
					return nil
				})}
			})
			received := 0
			for text, err := range parts.Call(t.Context(), group[0], "worker1", n) {
				require.NoError(t, err)
				require.Len(t, text, received%n*(received/n)*20)
				if received++; received%n == 0 {
					proceed <- struct{}{}
				}
			}
			require.Equal(t, 2*n, received)
			requireIdle(t, group...)
		})
	}
}

// BenchmarkStream measures one small value from a handler to a caller.
func BenchmarkStream(b *testing.B) {
	for name, listen := range map[string][]string{"shm": {"shm://"}, "uv": {"uv://127.0.0.1:0"}} {
		b.Run(name, func(b *testing.B) {
			numbers := agent.NewServerStream[int, int]("test.numbers")
			group := startGroup(b, 2, func(_ int, c *agent.Config) {
				c.Listen = listen
				c.Funcs = agent.Funcs{numbers.Serve(func(_ context.Context, n int, out *agent.SendStream[int]) error {
					for i := 0; ; i++ {
						if err := out.Send(i); err != nil {
							return err
						}
					}
				})}
			})
			b.ReportAllocs()
			next, stop := iter.Pull2(numbers.Call(b.Context(), group[0], "worker1", 0))
			defer stop()
			for b.Loop() {
				if _, err, _ := next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
