package hostile_test

import (
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestEventsOfKilledPeer checks the events after a peer process is killed: its pipe reports the
// loss once, before its end, and the message whose write fails because of that. Other pipes report
// nothing.
func TestEventsOfKilledPeer(t *testing.T) {
	for _, dialect := range []pipe.Dialect{pipe.DialectCompatible, pipe.DialectNative} {
		t.Run(string(dialect), func(t *testing.T) {
			var mu sync.Mutex
			var ends []any
			var written []pipe.WrittenInfo
			v := newVictim(t, func(o *pipe.Options) {
				o.Events = &pipe.Events{
					MessageWritten: func(i pipe.WrittenInfo) {
						mu.Lock()
						defer mu.Unlock()
						if i.Err != nil {
							written = append(written, i)
						}
					},
					PeerLost: func(i pipe.PeerLostInfo) {
						mu.Lock()
						defer mu.Unlock()
						ends = append(ends, i)
					},
					Closed: func(i pipe.ClosedInfo) {
						mu.Lock()
						defer mu.Unlock()
						ends = append(ends, i)
					},
				}
			})
			c := v.startChild(t, dialect, "echo")
			c.signal(t, syscall.SIGSTOP) // it reads nothing
			tensor := pipe.Tensor{Buffer: device.Bytes(make([]byte, hugeSize))}
			op := c.pipe.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{tensor}})
			c.signal(t, syscall.SIGKILL)
			err := op.Wait(t.Context())
			require.ErrorIs(t, err, pipe.ErrPeerLost)
			requirePeerLost(t, c.pipe)
			<-c.pipe.Done()

			mu.Lock()
			defer mu.Unlock()
			require.Len(t, written, 1)
			require.Equal(t, err, written[0].Err)
			require.Equal(t, hugeSize, written[0].Bytes)
			require.Len(t, ends, 2)
			lost, closed := ends[0].(pipe.PeerLostInfo), ends[1].(pipe.ClosedInfo)
			require.Equal(t, []uint64{c.pipe.Number(), c.pipe.Number()}, []uint64{lost.Pipe.Number, closed.Pipe.Number})
			require.ErrorIs(t, lost.Err, pipe.ErrPeerLost)
			require.Equal(t, c.pipe.Err(), closed.Err)
		})
	}
}
