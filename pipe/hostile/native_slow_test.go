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

// Peers that take their time with what they are told, or never look at it.

// readying is what a Read of crowd(parts) says, in bytes.
func readying(parts int) int {
	devices := make([]device.Device, parts)
	for i := range devices {
		devices[i] = device.CPU()
	}
	targets := word(native.Control{Kind: native.Targets, Devices: devices})
	return len(targets) + 2*parts*len(word(native.Control{Kind: native.Ready}))
}

// hearsBytes waits until the victim has said so much on a stream.
func (n *intruder) hearsBytes(stream uint32, size int) {
	n.t.Helper()
	var heard int
	n.await(func() bool {
		heard = len(n.heard[stream])
		return heard >= size || n.over
	})
	require.Equal(n.t, size, heard)
}

// A peer that is slow to hear is told a lot, by Reads of messages with many
// parts. That is no fault of its.
func TestNativeSlowToHear(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
	const messages, parts, pause = 3, native.MaxParts / 2, time.Second / 2
	reads, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := make(chan error, messages)
	for range messages {
		n.message(crowd(parts))
		in, err := n.pipe.Next(t.Context())
		require.NoError(t, err)
		go func() { read <- in.Read(reads, pipe.NewAllocation(in.Descriptor())) }()
	}
	n.hearsBytes(controlStream, 256<<10) // its window
	<-time.After(pause)                  // what must not matter
	v.unharmed(t)
	require.NoError(t, n.pipe.Err())
	n.grant(controlStream, 64<<20)
	n.hearsBytes(controlStream, messages*readying(parts))
	cancel()
	for range messages {
		require.ErrorIs(t, <-read, context.Canceled)
	}
	n.leave()
	v.quiet(t)
}

// One that never listens makes Reads wait for it, which they need not begin; what
// is unsaid takes bounded memory.
func TestNativeNeverHears(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
	require.Less(t, grown(t, func() {
		begun := 0
		for range 5 {
			n.message(crowd(native.MaxParts / 2))
			in, err := n.pipe.Next(t.Context())
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			err = in.Read(&looked{Context: ctx, at: cancel}, pipe.NewAllocation(in.Descriptor()))
			require.ErrorIs(t, err, context.Canceled)
			if errors.Is(err, pipe.ErrCancelled) {
				begun++
			} else {
				require.NoError(t, in.Discard(t.Context()))
			}
		}
		require.Positive(t, begun)
		require.LessOrEqual(t, begun, 2, "the words of one are being said, those of another wait")
	}), 10<<20)
	require.NoError(t, n.pipe.Err())
	n.pipe.Abort(pipe.ErrClosed)
	n.first.Close()
	v.quiet(t)
}

// A writer gives up much at once while its peer is slow to hear: the reasons are
// dropped before the pipe is.
func TestNativeSlowToHearOfAborts(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
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
	n.awaitControl(native.Abort, messages)
	n.exchangeInbound(t)
	n.leave()
	v.quiet(t)
}

// What was given up and has not left counts as in flight until it has: a peer
// that takes in nothing makes no writer hold ever more.
func TestNativeGivenUpIsInFlight(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
	m := &pipe.Message{Metadata: make([]byte, 100_000), Payloads: []pipe.Payload{{Data: make([]byte, 100_000)}}}
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		op := n.pipe.WriteAsync(ctx, m)
		cancel()
		require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrCancelled)
	}
	require.Greater(t, n.pipe.Stats().BytesInFlight, 500_000)
	n.grant(messageStream, 64<<20)
	await(t, func() bool { return n.pipe.Stats().BytesInFlight == 0 }, "all has left")
	n.leave()
	v.quiet(t)
}
