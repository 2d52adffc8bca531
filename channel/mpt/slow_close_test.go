package mpt_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// parts is how long the Close of a lingering connection takes, as with TLS if the peer does not read.
const parts = time.Second / 2

// lingering is a transport whose connections take some time to close.
type lingering struct{ transport.Transport }

func (l lingering) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := l.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return lingeringConn{conn, conn.(transport.Multiplexer), new(atomic.Bool)}, nil
}

type lingeringConn struct {
	transport.Conn
	transport.Multiplexer
	closed *atomic.Bool
}

func (c lingeringConn) CloseWrite() error {
	defer time.Sleep(parts)
	return c.Conn.CloseWrite()
}

func (c lingeringConn) Close() error {
	if !c.closed.Swap(true) {
		defer time.Sleep(parts)
	}
	return c.Conn.Close()
}

func (c lingeringConn) Stream() (transport.Stream, error) {
	s, err := c.Multiplexer.Stream()
	return lingeringStream{s, c}, err
}

type lingeringStream struct {
	transport.Stream
	conn lingeringConn
}

func (s lingeringStream) Close() error { return s.conn.Close() }

// Close closes lanes whose Close takes long concurrently, and transfers that begin meanwhile fail
// at once.
func TestCloseOfManySlowLanes(t *testing.T) {
	const most = 8
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := mpt.New(netLanes(most, lingering{mem.New(nil)}))
				one, other := d.open(t, f, f, overMem())
				if d.name == "native" {
					warm(t, one, other, func() { time.Sleep(time.Second) })
				} else {
					move(t, 0, one, other, numbered(100))
				}
				begun := time.Now()
				closed := make(chan error, 1)
				go func() { closed <- one.Close(nil) }()
				synctest.Wait()
				require.ErrorIs(t, <-send(one, 1<<40, make([]byte, 4<<20)), channel.ErrClosed)
				require.Zero(t, time.Since(begun))
				require.NoError(t, <-closed)
				require.Less(t, time.Since(begun), most*parts/2)
			})
		})
	}
}

// When the peer has closed, an end closes its lanes, whose Close takes long, concurrently.
func TestEndOfManySlowLanes(t *testing.T) {
	const most = 8
	synctest.Test(t, func(t *testing.T) {
		f := mpt.New(netLanes(most, lingering{mem.New(nil)}))
		one, other := compatPair(t, f, f, overMem())
		move(t, 0, one, other, numbered(100))
		begun := time.Now()
		require.NoError(t, other.Close(nil))
		<-one.broken
		require.Less(t, time.Since(begun), most*parts/2)
	})
}
