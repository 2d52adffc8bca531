package samehost_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// again opens another pipe between the two processes and sends a tensor each way.
func (n *node) again() {
	if n.Rank == 0 {
		n.accept()
	} else {
		n.dial(n.url)
	}
	n.exchangeOnce()
}

func (n *node) exchangeOnce() {
	s := n.stream(gpu(0))
	op := n.WriteAsync(n.Context(), message(gpu(0), n.filled(tensorSize, s, byte(20+n.Rank))))
	n.requireFilled(n.read(s)[0], byte(21-n.Rank))
	require.NoError(n, op.Wait(n.Context()))
}

// requireEnd requires that the pipe ends with a typed error.
func (n *node) requireEnd() {
	_, err := n.Next(n.Context())
	var named *pipe.Error
	require.ErrorAs(n, err, &named)
	require.NoError(n, n.Context().Err())
}

// A Write that is cancelled before the receiver supplies memory loses its message, and in the compatible
// dialect the pipe.
func TestWriteIsCancelled(t *testing.T) {
	inBothForms(t, func(t *testing.T, r route) {
		p := r.start(t, nil, func(n *node) {
			native := n.route.dialect == pipe.DialectNative
			s := n.stream(gpu(0))
			if n.Rank == 0 {
				b := n.filled(tensorSize, s, 1)
				ctx, cancel := context.WithCancel(n.Context())
				op := n.WriteAsync(ctx, message(gpu(0), b))
				require.NoError(n, n.WaitFor("cancel"))
				cancel()
				require.ErrorIs(n, op.Wait(n.Context()), context.Canceled)
				n.fill(b, 0xee)
				n.Send("cancelled")
			} else {
				in := n.next()
				n.Send("described")
				require.NoError(n, n.WaitFor("read"))
				err := in.Read(n.Context(), pipe.Allocation{Tensors: []device.Buffer{n.alloc(tensorSize, s)}})
				if native {
					require.ErrorIs(n, err, pipe.ErrAborted)
				}
			}
			if native {
				n.exchangeOnce()
			} else {
				n.requireEnd()
			}
			n.again()
		})
		require.Equal(t, "described", p.ReadLine(1))
		p.Send(0, "cancel")
		require.Equal(t, "cancelled", p.ReadLine(0))
		p.Send(1, "read")
		p.finish()
	})
}

// A Read whose context has ended has no effect.
func TestReadIsCancelled(t *testing.T) {
	inBothForms(t, func(t *testing.T, r route) {
		r.both(t, nil, func(n *node) {
			s := n.stream(gpu(0))
			if n.Rank == 0 {
				n.write(gpu(0), n.filled(tensorSize, s, 1))
			} else {
				in := n.next()
				ctx, cancel := context.WithCancel(n.Context())
				cancel()
				b := n.alloc(tensorSize, s)
				require.ErrorIs(n, in.Read(ctx, pipe.Allocation{Tensors: []device.Buffer{b}}), context.Canceled)
				require.NoError(n, in.Read(n.Context(), pipe.Allocation{Tensors: []device.Buffer{b}}))
				n.requireFilled(b, 1)
			}
			n.exchangeOnce()
		})
	})
}

// A pipe that ends, by Close or Abort, while the work of its tensors is held back leaves this work in
// place: the bytes are right, and the memory that was sent changes after it.
func TestEndBeforeTheWorkIsDone(t *testing.T) {
	ends := map[string]func(*node){
		"Close": func(n *node) { require.NoError(n, n.Close()) },
		"Abort": func(n *node) { n.Abort(nil); <-n.Done() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			inBothForms(t, func(t *testing.T, r route) {
				p := r.start(t, nil, func(n *node) {
					s := n.stream(gpu(0))
					n.control.HoldAll()
					sent, got := n.filled(tensorSize, s, byte(1+n.Rank)), n.alloc(tensorSize, n.stream(gpu(0)))
					op := n.WriteAsync(n.Context(), message(gpu(0), sent))
					n.readInto(got)
					require.NoError(n, op.Wait(n.Context()))
					n.Send("returned")
					require.NoError(n, n.WaitFor("end"))
					end(n)
					n.fill(sent, 0xee)
					n.Send("ended")
					require.NoError(n, n.WaitFor("release"))
					n.control.ReleaseAll()
					n.requireFilled(got, byte(2-n.Rank))
					n.requireFilled(sent, 0xee)
					n.again()
				})
				for _, step := range [][2]string{{"returned", "end"}, {"ended", "release"}} {
					for rank := range 2 {
						require.Equal(t, step[0], p.ReadLine(rank))
					}
					p.SendAll(step[1])
				}
				p.finish()
			})
		})
	}
}

// A pipe that ends while a message waits for memory fails Write and Read at both ends. The next pipe works.
func TestEndBeforeRead(t *testing.T) {
	for _, ending := range []int{0, 1} {
		t.Run([]string{"sender", "receiver"}[ending], func(t *testing.T) {
			inBothForms(t, func(t *testing.T, r route) {
				p := r.start(t, nil, func(n *node) {
					s := n.stream(gpu(0))
					var op *pipe.WriteOp
					var in *pipe.Incoming
					if n.Rank == 0 {
						op = n.WriteAsync(n.Context(), message(gpu(0), n.filled(tensorSize, s, 1)))
					} else {
						in = n.next()
					}
					n.Send("begun")
					require.NoError(n, n.WaitFor("end"))
					if n.Rank == ending {
						n.Abort(errors.New("the end of the test"))
					}
					n.requireEnd()
					if n.Rank == 0 {
						require.Error(n, op.Wait(n.Context()))
					} else {
						require.Error(n, in.Read(n.Context(), pipe.Allocation{Tensors: []device.Buffer{n.alloc(tensorSize, s)}}))
					}
					n.again()
				})
				for rank := range 2 {
					require.Equal(t, "begun", p.ReadLine(rank))
				}
				p.SendAll("end")
				p.finish()
			})
		})
	}
}
