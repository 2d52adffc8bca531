package hostile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// readyBytes returns how many bytes of control frames the victim sends when it reads
// manyPartsMessage(parts).
func readyBytes(parts int) int {
	devices := make([]device.Device, parts)
	for i := range devices {
		devices[i] = device.CPU()
	}
	targets := encodeControl(native.Control{Kind: native.Targets, Devices: devices})
	return len(targets) + 2*parts*len(encodeControl(native.Control{Kind: native.Ready}))
}

// waitBytes waits until the victim has sent size bytes on the given stream, or the connection has
// ended, and requires that it has sent exactly that many.
func (n *nativeAttack) waitBytes(stream uint32, size int) {
	n.t.Helper()
	var received int
	n.waitFor(func() bool {
		received = len(n.received[stream])
		return received >= size || n.ended
	})
	require.Equal(n.t, size, received)
}

// TestNativeSlowControlReader checks that the pipe stays open if the peer reads control frames
// slowly while Reads of messages with many parts send many of them.
func TestNativeSlowControlReader(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	const messages, parts, pause = 3, native.MaxParts / 2, time.Second / 2
	reads, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := make(chan error, messages)
	for range messages {
		n.message(manyPartsMessage(parts))
		in, err := n.pipe.Next(t.Context())
		require.NoError(t, err)
		go func() { read <- in.Read(reads, pipe.NewAllocation(in.Descriptor())) }()
	}
	n.waitBytes(controlStream, 256<<10) // its window
	<-time.After(pause)                 // must have no effect
	v.requireHealthy(t)
	require.NoError(t, n.pipe.Err())
	n.grant(controlStream, 64<<20)
	n.waitBytes(controlStream, messages*readyBytes(parts))
	cancel()
	for range messages {
		require.ErrorIs(t, <-read, context.Canceled)
	}
	n.closeOrderly()
	v.requireIdle(t)
}

// TestNativeReadsBlockedByControl checks that queued control frames take bounded memory if the peer
// never reads any: Reads that would send more of them block before they begin, and can be
// cancelled.
func TestNativeReadsBlockedByControl(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	require.Less(t, heapGrowth(t, func() {
		begun := 0
		for range 5 {
			n.message(manyPartsMessage(native.MaxParts / 2))
			in, err := n.pipe.Next(t.Context())
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			err = in.Read(&doneHook{Context: ctx, at: cancel}, pipe.NewAllocation(in.Descriptor()))
			require.ErrorIs(t, err, context.Canceled)
			if errors.Is(err, pipe.ErrCancelled) {
				begun++
			} else {
				require.NoError(t, in.Discard(t.Context()))
			}
		}
		require.Positive(t, begun)
		require.LessOrEqual(t, begun, 2, "the frames of one are being sent, those of another are queued")
	}), 10<<20)
	require.NoError(t, n.pipe.Err())
	n.pipe.Abort(pipe.ErrClosed)
	n.first.Close()
	v.requireIdle(t)
}

// TestNativeManyAbortsToSlowReader checks that the pipe stays open if a writer aborts thousands of
// messages while its peer reads no control frames, and that the peer can read all of the aborts
// later.
func TestNativeManyAbortsToSlowReader(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	const messages = 10_000
	ctx, cancel := context.WithCancelCause(t.Context())
	large := &pipe.Message{Payloads: []pipe.Payload{{Data: make([]byte, 100_000)}}}
	var ops []*pipe.WriteOp
	for range messages {
		ops = append(ops, n.pipe.WriteAsync(ctx, large))
	}
	cancel(errors.New(strings.Repeat("enough ", 150)))
	for _, op := range ops {
		require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrCancelled)
	}
	require.NoError(t, n.pipe.Err())
	n.grant(controlStream, 64<<20)
	n.grant(messageStream, 64<<20)
	n.nthControl(native.Abort, messages)
	n.exchangeInbound(t)
	n.closeOrderly()
	v.requireIdle(t)
}

// TestNativeCancelledWritesCountAsInFlight checks that cancelled messages whose bytes are still
// queued count as in flight, so that a writer whose peer does not read is bounded.
func TestNativeCancelledWritesCountAsInFlight(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	m := &pipe.Message{Metadata: make([]byte, 100_000), Payloads: []pipe.Payload{{Data: make([]byte, 100_000)}}}
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		op := n.pipe.WriteAsync(ctx, m)
		cancel()
		require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrCancelled)
	}
	require.Greater(t, n.pipe.Stats().BytesInFlight, 500_000)
	n.grant(messageStream, 64<<20)
	waitFor(t, func() bool { return n.pipe.Stats().BytesInFlight == 0 }, "everything was sent")
	n.closeOrderly()
	v.requireIdle(t)
}
