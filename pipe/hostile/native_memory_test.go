package hostile_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A peer that gives up what never comes is cut off at the limit.
func TestNativeTooManyEarlyAborts(t *testing.T) {
	inBothNativeRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *intruder) {
		n := open(t)
		var p []byte
		for i := range uint64(1<<16 + 1) {
			p = native.Control{Kind: native.Abort, Number: i}.Append(p, false)
		}
		n.say(controlStream, p)
		n.requireDown([]string{"control"}, pipe.ErrProtocol, pipe.ErrLimit)
		v.unharmed(t)
	})
}

// So is one that asks about what was never sent.
func TestNativeTooManyQuestions(t *testing.T) {
	inBothNativeRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *intruder) {
		n := open(t)
		var p []byte
		for i := range uint64(1<<16 + 1) {
			p = native.Control{Kind: native.WantRead, Number: i}.Append(p, false)
		}
		n.say(controlStream, p)
		n.requireDown([]string{"control"}, pipe.ErrProtocol, pipe.ErrLimit)
		v.unharmed(t)
	})
}

// A peer makes this end discard many messages, and never reads that it did: what
// is left unsaid is bounded, and then the pipe ends.
func TestNativeControlNeverRead(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
	before := held()
	large := text(largeMessage(1 << 20))
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for {
			in, err := n.pipe.Next(t.Context())
			if err != nil || in.Discard(t.Context()) != nil {
				return
			}
		}
	}()
	batch := []byte(strings.Repeat(string(large), 500))
	for done := false; !done; {
		n.say(messageStream, batch)
		select {
		case <-n.pipe.Done():
			done = true
		default:
			n.mu.Lock()
			done = n.over
			n.mu.Unlock()
		}
	}
	<-stop
	grown := held() - min(before, held())
	t.Logf("%d KiB held", grown>>10)
	require.Less(t, grown, uint64(16<<20))
	n.requireDown([]string{"control"}, pipe.ErrProtocol)
	v.quiet(t)
	v.alive(t)
}

// grown is what f makes this process hold on the heap.
func grown(t testing.TB, f func()) int {
	t.Helper()
	before := held()
	f()
	after := held()
	n := int(after - min(before, after))
	t.Logf("%d KiB held, resident set of %d KiB", n>>10, resident(t)>>10)
	return n
}

// The reasons of ABORTs for messages that never come are not worth much memory.
func TestNativeMemoryOfEarlyAborts(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
	reason := strings.Repeat("because ", 128)
	n.exchangeInbound(t)
	require.Less(t, grown(t, func() {
		for batch := range uint64(64) {
			var p []byte
			for i := range uint64(1 << 10) {
				p = native.Control{Kind: native.Abort, Number: 1 + batch<<10 + i, Text: reason}.Append(p, false)
			}
			n.say(controlStream, p)
		}
		n.obeyed()
	}), 8<<20)
	t.Run("the first reasons are told", func(t *testing.T) {
		n.message(largeMessage(1 << 20)) // given up long ago
		n.message(inlineMessage("the next one"))
		in, err := n.pipe.Next(t.Context())
		if err == nil && in.Descriptor().Payloads[0].Length == 1<<20 { // it was faster
			err = in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
			require.ErrorIs(t, err, pipe.ErrAborted)
			require.ErrorContains(t, err, reason)
			in, err = n.pipe.Next(t.Context())
		}
		require.NoError(t, err)
		require.NoError(t, in.Discard(t.Context()))
	})
	n.leave()
	v.quiet(t)
}

// Memory that waits for transfers that there are not, or that wait already, is
// nothing to keep account of.
func TestNativeMemoryOfReadies(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
	n.exchangeInbound(t)
	op := n.pipe.WriteAsync(t.Context(), &pipe.Message{Payloads: []pipe.Payload{{Data: make([]byte, 1<<20)}}})
	require.Less(t, grown(t, func() {
		for batch := range uint64(100) {
			var p []byte
			for i := range uint64(1 << 10) {
				p = native.Control{Kind: native.Ready, Lane: uint16(i), Number: batch<<26 | i}.Append(p, false)
				p = native.Control{Kind: native.Ready, Number: n.theirs(0)}.Append(p, false)
			}
			n.say(controlStream, p)
		}
		n.obeyed()
	}), 1<<20)
	require.NoError(t, n.pipe.Err())
	n.control(native.Control{Kind: native.Cancel})
	require.NoError(t, op.Wait(t.Context()))
	n.leave()
	v.quiet(t)
}

// crowd is a message of so many payloads and tensors of a byte each that wait
// for memory.
func crowd(parts int) native.Message {
	return native.Message{
		Payloads: slices.Repeat([]native.Payload{{Length: 1}}, parts),
		Tensors:  slices.Repeat([]native.Tensor{{Length: 1, Source: device.CPU()}}, parts),
	}
}

// A peer floods messages that the application does not ask for.
func TestNativeMemoryOfFlood(t *testing.T) { nativeMemoryOfFlood(t, newVictim(t)) }

func nativeMemoryOfFlood(t *testing.T, v *victim) {
	const pipes, readAhead, window = 4, 256 << 10, 256 << 10
	inline := inlineMessage(string(make([]byte, 60_000)))
	for name, c := range map[string]struct {
		message []byte
		most    int // bytes that one message takes, with the frame of another, which is copied as it grows
	}{
		"empty messages":          {text(native.Message{}), 1 << 10},
		"metadata":                {text(native.Message{Metadata: make([]byte, 10_000)}), 20_000},
		"inline payloads":         {text(inline), 120_000},
		"unasked parts":           {text(largeMessage(1 << 20)), 1 << 10},
		"a crowd of parts":        {text(crowd(500)), 300_000},
		"as many as there may be": {text(crowd(native.MaxParts)), 36 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			var intruders []*intruder
			for i := range pipes {
				intruders = append(intruders, []func(testing.TB, *victim) *intruder{dialNatively, lureNatively}[i%2](t, v))
			}
			size := grown(t, func() {
				var floods sync.WaitGroup
				for _, n := range intruders {
					floods.Go(func() { n.flood(c.message) })
				}
				floods.Wait()
			})
			require.Less(t, size, pipes*(2*readAhead+2*window+c.most+overhead))
			for _, n := range intruders {
				n.pipe.Abort(pipe.ErrClosed)
				n.first.Close()
			}
			v.unharmed(t)
		})
	}
	v.quiet(t)
	v.alive(t)
}

// flood says a message again and again until the victim takes no more.
func (n *intruder) flood(message []byte) {
	for p := message; ; p = message {
		for len(p) > 0 {
			size := n.claim(messageStream, len(p))
			if size == 0 {
				return
			}
			n.first.send(muxWord(muxData, 0, messageStream, uint32(size)), p[:size])
			p = p[size:]
		}
	}
}

// claim takes window for size bytes at most, waiting for a while.
func (n *intruder) claim(stream uint32, size int) (got int) {
	timeout := time.After(shortly)
	for {
		n.mu.Lock()
		got = min(size, 64<<10, n.credit[stream])
		n.credit[stream] -= got
		changed := n.changed
		n.mu.Unlock()
		if got > 0 {
			return got
		}
		select {
		case <-changed:
		case <-timeout:
			return 0
		}
	}
}

// A message that was released leaves no more memory behind than a small one.
func TestNativeMemoryOfReleasedCrowds(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
	require.Less(t, grown(t, func() {
		var all []*pipe.Incoming
		for range 4 {
			n.message(crowd(native.MaxParts))
			in, err := n.pipe.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, in.Discard(t.Context()))
			all = append(all, in)
		}
		for _, in := range all {
			in.Release()
		}
		for range 16 {
			n.message(inlineMessage("small"))
		}
		await(t, func() bool { return n.pipe.Stats().BytesReadAhead >= 16*70 }, "they are taken in ahead")
	}), 4<<20)
	n.pipe.Abort(pipe.ErrClosed)
	n.first.Close()
	v.quiet(t)
}

// What is told about many transfers at once, that the peer gives them up, does
// not take a goroutine each.
func TestNativeMemoryOfAbortedCrowd(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
	n.grant(controlStream, 64<<20)
	const parts = native.MaxParts / 4
	n.message(crowd(parts))
	in, err := n.pipe.Next(t.Context())
	require.NoError(t, err)
	a := pipe.NewAllocation(in.Descriptor())
	read := make(chan error, 1)
	go func() { read <- in.Read(t.Context(), a) }()
	n.hearsBytes(controlStream, readying(parts))
	n.control(native.Control{Kind: native.Abort, Text: "never mind"})
	most := 0
	for err = nil; err == nil; most = max(most, runtime.NumGoroutine()) {
		select {
		case err = <-read:
		default:
			runtime.Gosched()
		}
	}
	require.ErrorIs(t, err, pipe.ErrAborted)
	require.Less(t, most, 1000)
	n.leave()
	v.quiet(t)
}

// A message that never comes to its end is being read, and others without end
// are read meanwhile.
func TestNativeMemoryOfOvertaking(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
	ctx, cancel := context.WithCancel(t.Context())
	_, stuck := n.readingUnder(ctx, 1<<20)
	batch := []byte(strings.Repeat(string(text(inlineMessage("x"))), 1000))
	require.Less(t, grown(t, func() {
		for range 200 {
			n.say(messageStream, batch)
			for range 1000 {
				in, err := n.pipe.Next(t.Context())
				require.NoError(t, err)
				require.NoError(t, in.Discard(t.Context()))
				in.Release()
			}
		}
	}), 1<<20)
	n.control(native.Control{Kind: native.WantRead, Number: 200_000})
	cancel()
	require.ErrorIs(t, <-stuck, context.Canceled)
	require.EqualValues(t, 200_000, n.hears(native.HaveRead).Number, "all have been read")
	n.leave()
	v.quiet(t)
}
