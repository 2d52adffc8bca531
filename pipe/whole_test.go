package pipe_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// A peer that reads descriptions in one piece gets none that it cannot: the message
// is refused, and the pipe goes on. Payloads and tensors may have any size. In the
// native dialect there are no such peers.
func TestDescriptionThatThePeerCannotTake(t *testing.T) {
	const whole = 10_000
	for dialect, refused := range map[string]bool{pipe.DialectCompatible: true, pipe.DialectNative: false} {
		t.Run(dialect, func(t *testing.T) {
			c := both(t, mem.NewNetwork(), func(o *pipe.Options) {
				o.Dialect = dialect
				for i, e := range o.Transports {
					o.Transports[i].Transport = wholeTransport{e.Transport, whole}
				}
			})
			client, server := connectContexts(t, c, c, "mem://")
			err := client.Write(testContext(t), &pipe.Message{Metadata: pattern(whole, 1)})
			if refused {
				require.ErrorIs(t, err, pipe.ErrLimit)
				require.ErrorContains(t, err, "10000")
			} else {
				require.NoError(t, err)
				expect(t, server, &pipe.Message{Metadata: pattern(whole, 1)})
			}
			many := message(1, []int{2 * whole}, make([]int, whole/30))
			for i := range many.Tensors {
				many.Tensors[i].Metadata = nil
			}
			for _, m := range []*pipe.Message{{Metadata: pattern(whole-20, 1)}, message(1, []int{2 * whole}, []int{2 * whole}), many} {
				op := client.WriteAsync(testContext(t), m)
				expect(t, server, m)
				require.NoError(t, op.Wait(testContext(t)))
			}
		})
	}
}

// wholeTransport has connections whose peers take some frames in one piece.
type wholeTransport struct {
	transport.Transport
	largest int
}

func (w wholeTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := w.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return wholeConn{c, c.(transport.Multiplexer), w.largest}, nil
}

type wholeConn struct {
	transport.Conn
	transport.Multiplexer
	largest int
}

func (c wholeConn) LargestWhole() int { return c.largest }
