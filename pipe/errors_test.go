package pipe_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// unwritableTransport returns connections whose writes fail with err.
type unwritableTransport struct {
	transport.Transport
	err error
}

func (f unwritableTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := f.Transport.Dial(ctx, addr)
	return unwritableConn{c, f.err}, err
}

type unwritableConn struct {
	transport.Conn
	err error
}

func (c unwritableConn) WriteFrames(...transport.Frame) error { return c.err }

// deniedError is an error number that matches transport.ErrResource.
type deniedError struct{ syscall.Errno }

func (deniedError) Is(target error) bool { return target == transport.ErrResource }
func (e deniedError) Unwrap() error      { return e.Errno }

// TestResourceErrorIsNoLoss checks that an error number of the system counts as the loss of the
// peer, unless the transport declares with ErrResource that the system denied this process a
// resource.
func TestResourceErrorIsNoLoss(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		lost bool
	}{
		"undeclared":            {syscall.EMFILE, true},
		"declared by wrapping":  {fmt.Errorf("%w: %w", transport.ErrResource, syscall.EMFILE), false},
		"declared by a method":  {deniedError{syscall.EMFILE}, false},
		"declared, and wrapped": {fmt.Errorf("write: %w", deniedError{syscall.EMFILE}), false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := both(t, mem.NewNetwork(), func(o *pipe.Options) {
				for i, e := range o.Transports {
					o.Transports[i].Transport = unwritableTransport{e.Transport, c.err}
				}
			})
			l, err := ctx.Listen(t.Context(), "mem://")
			require.NoError(t, err)
			_, err = ctx.Dial(testContext(t), l.URLs()[0])
			require.ErrorIs(t, err, syscall.EMFILE)
			require.ErrorContains(t, err, c.err.Error())
			if c.lost {
				require.ErrorIs(t, err, pipe.ErrPeerLost)
			} else {
				require.NotErrorIs(t, err, pipe.ErrPeerLost)
			}
		})
	}
}
