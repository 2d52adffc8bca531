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

// TestNativeTooManyEarlyAborts checks that a peer that aborts more messages than the limit before
// they arrive breaks its pipe with ErrProtocol and ErrLimit.
func TestNativeTooManyEarlyAborts(t *testing.T) {
	inBothNativeRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
		n := open(t)
		var p []byte
		for i := range uint64(1<<16 + 1) {
			p = native.Control{Kind: native.Abort, Number: i}.Append(p, false)
		}
		n.sendOn(controlStream, p)
		n.requireBrokenNative([]string{"control"}, pipe.ErrProtocol, pipe.ErrLimit)
		v.requireHealthy(t)
	})
}

// TestNativeTooManyWantRead checks that a peer that requests the confirmation of more unknown
// messages than the limit breaks its pipe with ErrProtocol and ErrLimit.
func TestNativeTooManyWantRead(t *testing.T) {
	inBothNativeRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
		n := open(t)
		var p []byte
		for i := range uint64(1<<16 + 1) {
			p = native.Control{Kind: native.WantRead, Number: i}.Append(p, false)
		}
		n.sendOn(controlStream, p)
		n.requireBrokenNative([]string{"control"}, pipe.ErrProtocol, pipe.ErrLimit)
		v.requireHealthy(t)
	})
}

// TestNativeControlNeverRead checks that a peer that makes the victim discard many messages, and
// never reads the control frames about them, takes bounded memory: the pipe breaks when too many
// frames are queued.
func TestNativeControlNeverRead(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	before := heapInUse()
	large := encodeMessage(largeMessage(1 << 20))
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
		n.sendOn(messageStream, batch)
		select {
		case <-n.pipe.Done():
			done = true
		default:
			n.mu.Lock()
			done = n.ended
			n.mu.Unlock()
		}
	}
	<-stop
	grown := heapInUse() - min(before, heapInUse())
	t.Logf("%d KiB held", grown>>10)
	require.Less(t, grown, uint64(16<<20))
	n.requireBrokenNative([]string{"control"}, pipe.ErrProtocol)
	v.requireIdle(t)
	v.requireServing(t)
}

// heapGrowth calls f and returns by how many bytes the Go heap in use is larger afterwards, or 0 if
// it has shrunk.
func heapGrowth(t testing.TB, f func()) int {
	t.Helper()
	before := heapInUse()
	f()
	after := heapInUse()
	n := int(after - min(before, after))
	t.Logf("%d KiB held, resident set of %d KiB", n>>10, residentBytes(t)>>10)
	return n
}

// TestNativeMemoryOfEarlyAborts checks that the reasons with which a peer aborts messages before
// they arrive take little memory, and that the first of these reasons are kept.
func TestNativeMemoryOfEarlyAborts(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	reason := strings.Repeat("because ", 128)
	n.exchangeInbound(t)
	require.Less(t, heapGrowth(t, func() {
		for batch := range uint64(64) {
			var p []byte
			for i := range uint64(1 << 10) {
				p = native.Control{Kind: native.Abort, Number: 1 + batch<<10 + i, Text: reason}.Append(p, false)
			}
			n.sendOn(controlStream, p)
		}
		n.syncControl()
	}), 8<<20)
	t.Run("the first reasons are kept", func(t *testing.T) {
		n.message(largeMessage(1 << 20)) // aborted before
		n.message(inlineMessage("the next one"))
		in, err := n.pipe.Next(t.Context())
		if err == nil && in.Descriptor().Payloads[0].Length == 1<<20 { // it arrived before the ABORT
			err = in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
			require.ErrorIs(t, err, pipe.ErrAborted)
			require.ErrorContains(t, err, reason)
			in, err = n.pipe.Next(t.Context())
		}
		require.NoError(t, err)
		require.NoError(t, in.Discard(t.Context()))
	})
	n.closeOrderly()
	v.requireIdle(t)
}

// TestNativeMemoryOfReady checks that READY frames for unknown transfers, and repeated ones for the
// same transfer, take no memory.
func TestNativeMemoryOfReady(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	n.exchangeInbound(t)
	op := n.pipe.WriteAsync(t.Context(), &pipe.Message{Payloads: []pipe.Payload{{Data: make([]byte, 1<<20)}}})
	require.Less(t, heapGrowth(t, func() {
		for batch := range uint64(100) {
			var p []byte
			for i := range uint64(1 << 10) {
				p = native.Control{Kind: native.Ready, Lane: uint16(i), Number: batch<<26 | i}.Append(p, false)
				p = native.Control{Kind: native.Ready, Number: n.victimID(0)}.Append(p, false)
			}
			n.sendOn(controlStream, p)
		}
		n.syncControl()
	}), 1<<20)
	require.NoError(t, n.pipe.Err())
	n.control(native.Control{Kind: native.Cancel})
	require.NoError(t, op.Wait(t.Context()))
	n.closeOrderly()
	v.requireIdle(t)
}

// manyPartsMessage returns the header of a message with the given number of payloads and as many
// tensors, each of one byte and not inline. The tensors have no target devices.
func manyPartsMessage(parts int) native.Message {
	return native.Message{
		Payloads: slices.Repeat([]native.Payload{{Length: 1}}, parts),
		Tensors:  slices.Repeat([]native.Tensor{{Length: 1, Source: device.CPU()}}, parts),
	}
}

// TestNativeMemoryOfFlood checks how much memory the victim holds when a peer sends many messages
// in the native dialect that the application does not read.
func TestNativeMemoryOfFlood(t *testing.T) { nativeMemoryOfFlood(t, newVictim(t)) }

func nativeMemoryOfFlood(t *testing.T, v *victim) {
	const pipes, readAhead, window = 4, 256 << 10, 256 << 10
	inline := inlineMessage(string(make([]byte, 60_000)))
	for name, c := range map[string]struct {
		message []byte
		most    int // bytes that a message takes, with the buffer for the frame of the next one
	}{
		"empty messages":             {encodeMessage(native.Message{}), 1 << 10},
		"metadata":                   {encodeMessage(native.Message{Metadata: make([]byte, 10_000)}), 20_000},
		"inline payloads":            {encodeMessage(inline), 120_000},
		"unread parts":               {encodeMessage(largeMessage(1 << 20)), 1 << 10},
		"many parts":                 {encodeMessage(manyPartsMessage(500)), 300_000},
		"as many parts as the limit": {encodeMessage(manyPartsMessage(native.MaxParts)), 36 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			var nativeAttacks []*nativeAttack
			for i := range pipes {
				nativeAttacks = append(nativeAttacks, []func(testing.TB, *victim) *nativeAttack{dialNative, acceptNative}[i%2](t, v))
			}
			size := heapGrowth(t, func() {
				var floods sync.WaitGroup
				for _, n := range nativeAttacks {
					floods.Go(func() { n.flood(c.message) })
				}
				floods.Wait()
			})
			require.Less(t, size, pipes*(2*readAhead+2*window+c.most+overhead))
			for _, n := range nativeAttacks {
				n.pipe.Abort(pipe.ErrClosed)
				n.first.Close()
			}
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// flood sends message on the message stream again and again, until the victim has granted no credit
// for shortTimeout.
func (n *nativeAttack) flood(message []byte) {
	for p := message; ; p = message {
		for len(p) > 0 {
			size := n.takeCredit(messageStream, len(p))
			if size == 0 {
				return
			}
			n.first.send(muxHeader(muxData, 0, messageStream, uint32(size)), p[:size])
			p = p[size:]
		}
	}
}

// takeCredit waits until the attacker may send on the given stream, uses up to size bytes of that
// credit, at most 64 KiB, and returns their number. It returns 0 if there is no credit for
// shortTimeout.
func (n *nativeAttack) takeCredit(stream uint32, size int) (got int) {
	timeout := time.After(shortTimeout)
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

// TestNativeMemoryOfReleasedMessages checks that a message with many parts keeps no more memory
// than a small one after Incoming.Release.
func TestNativeMemoryOfReleasedMessages(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	require.Less(t, heapGrowth(t, func() {
		var all []*pipe.Incoming
		for range 4 {
			n.message(manyPartsMessage(native.MaxParts))
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
		waitFor(t, func() bool { return n.pipe.Stats().BytesReadAhead >= 16*70 }, "they are read ahead")
	}), 4<<20)
	n.pipe.Abort(pipe.ErrClosed)
	n.first.Close()
	v.requireIdle(t)
}

// TestNativeGoroutinesOfAbort checks that the abort of a message with many transfers does not start
// a goroutine for each.
func TestNativeGoroutinesOfAbort(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	n.grant(controlStream, 64<<20)
	const parts = native.MaxParts / 4
	n.message(manyPartsMessage(parts))
	in, err := n.pipe.Next(t.Context())
	require.NoError(t, err)
	a := pipe.NewAllocation(in.Descriptor())
	read := make(chan error, 1)
	go func() { read <- in.Read(t.Context(), a) }()
	n.waitBytes(controlStream, readyBytes(parts))
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
	n.closeOrderly()
	v.requireIdle(t)
}

// TestNativeMemoryOfOvertaking checks that many messages that are read while the Read of an earlier
// one is blocked take no memory, and that all of them are confirmed once that Read ends.
func TestNativeMemoryOfOvertaking(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	ctx, cancel := context.WithCancel(t.Context())
	_, stuck := n.startReadWith(ctx, 1<<20)
	batch := []byte(strings.Repeat(string(encodeMessage(inlineMessage("x"))), 1000))
	require.Less(t, heapGrowth(t, func() {
		for range 200 {
			n.sendOn(messageStream, batch)
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
	require.EqualValues(t, 200_000, n.waitControl(native.HaveRead).Number, "all have been read")
	n.closeOrderly()
	v.requireIdle(t)
}
