package pipe_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// writeToPoller writes m while a call of Next of the server polls the stream. It returns the
// message that Next has returned, of which the inline bytes may not have arrived.
func writeToPoller(t *testing.T, throttle *throttle, client, server *pipe.Pipe, m *pipe.Message) *pipe.Incoming {
	t.Helper()
	throttle.awaitCalls(0, 2)
	found := make(chan *pipe.Incoming, 1)
	go func() {
		in, _ := server.Next(testContext(t))
		found <- in
	}()
	throttle.awaitCalls(1, 2)
	write(t, client, m)
	in := <-found
	require.NotNil(t, in)
	return in
}

// inlineMessage returns a new message with large parts that are all inline. seed determines the
// bytes.
func inlineMessage(seed int) *pipe.Message {
	return message(seed, []int{60_000, 0, 1}, []int{64 << 10, 5, 30_000})
}

// TestPolledLargeParts checks that if the stream can be polled, all parts of a message of up to 2
// MiB are inline. A message with one byte more uses the channel.
func TestPolledLargeParts(t *testing.T) {
	throttle := newThrottle(1 << 20)
	throttle.hasRoom = true
	client, server := connectPolled(t, throttle)
	require.Equal(t, 2<<20, client.Plan().Inline)
	require.Equal(t, 2<<20, client.Plan().InlineMessage)
	require.Regexp(t, `inline +all parts of a message of up to 2 MiB\n`, client.Plan().String())
	for i, n := range []int{200_000, 2<<20 - 300_007, 2<<20 - 300_006} {
		m := message(i, []int{7}, []int{n, 300_000})
		op := client.WriteAsync(testContext(t), m)
		expect(t, server, m)
		require.NoError(t, op.Wait(testContext(t)))
	}
	require.EqualValues(t, 2<<20-6, channelBytes(server), "one message is too large to be inline")
}

func channelBytes(p *pipe.Pipe) (n uint64) {
	for _, c := range p.Stats().Channels {
		n += c.Received.Bytes
	}
	return n
}

func TestPolledMessages(t *testing.T) {
	for _, piece := range []int{1 << 20, 5000, 777} {
		client, server := connectPolled(t, newThrottle(piece))
		for i := range 6 {
			m := inlineMessage(i)
			write(t, client, m)
			expect(t, server, m)
			small := message(i, []int{i}, []int{3})
			write(t, server, small)
			expect(t, client, small)
		}
	}
}

// TestPolledReadsInAnyOrder checks that messages that Next has returned while their bytes are still
// arriving can be read in any order.
func TestPolledReadsInAnyOrder(t *testing.T) {
	client, server := connectPolled(t, newThrottle(3000))
	var sent []*pipe.Message
	var got []*pipe.Incoming
	for i := range 5 {
		sent = append(sent, inlineMessage(i))
		write(t, client, sent[i])
	}
	for range sent {
		got = append(got, next(t, server))
	}
	for _, k := range []int{4, 0, 2, 1, 3} {
		same(t, sent[k], got[k].Descriptor(), read(t, got[k]))
		got[k].Release()
	}
}

func TestPolledDiscard(t *testing.T) {
	throttle := newThrottle(3000)
	client, server := connectPolled(t, throttle)
	for i := range 4 {
		in := writeToPoller(t, throttle, client, server, inlineMessage(i))
		write(t, client, inlineMessage(10+i))
		require.NoError(t, in.Discard(testContext(t)))
		in.Release()
		expect(t, server, inlineMessage(10+i))
	}
}

// TestPolledIntoScatteredMemory checks that Read of an inline tensor into a buffer of several
// segments fills all segments, although the pipe receives the bytes into its own memory first.
func TestPolledIntoScatteredMemory(t *testing.T) {
	throttle := newThrottle(3000)
	client, server := connectPolled(t, throttle)
	m := message(1, nil, []int{50_000, 20_000})
	in := writeToPoller(t, throttle, client, server, m)
	whole := pipe.NewAllocation(in.Descriptor())
	p, _ := whole.Tensors[0].Contiguous()
	pieces := device.Host(p[:100], p[100:30_000], p[30_000:])
	require.NoError(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{pieces, whole.Tensors[1]}}))
	same(t, m, in.Descriptor(), whole)
}

// TestPolledReadCancelled checks that if the ctx of a Read ends while inline bytes are arriving,
// Read returns and does not use its memory any more. The missing bytes are skipped, and the next
// message arrives.
func TestPolledReadCancelled(t *testing.T) {
	throttle := newThrottle(1 << 20)
	client, server := connectPolled(t, throttle)
	throttle.allow(40_000)
	in := writeToPoller(t, throttle, client, server, inlineMessage(1))
	ctx, cancel := cancelled(t)
	a := pipe.NewAllocation(in.Descriptor())
	failed := make(chan error, 1)
	go func() { failed <- in.Read(ctx, a) }()
	cancel()
	err := <-failed
	require.ErrorIs(t, err, errEnough)
	for _, p := range a.Payloads {
		clear(p) // the race detector reports a writer
	}
	write(t, client, inlineMessage(2))
	throttle.allow(1 << 40)
	expectOrAlreadyRead(t, server, in)
	expect(t, server, inlineMessage(2))
}

// expectOrAlreadyRead reads in after a cancelled Read. It requires that Read fails with
// ErrAlreadyRead, or, if the cancelled Read had not claimed the message, that the message equals
// inlineMessage(1).
func expectOrAlreadyRead(t *testing.T, p *pipe.Pipe, in *pipe.Incoming) {
	a := pipe.NewAllocation(in.Descriptor())
	if err := in.Read(testContext(t), a); err != nil {
		require.ErrorIs(t, err, pipe.ErrAlreadyRead)
		return
	}
	same(t, inlineMessage(1), in.Descriptor(), a)
}

func TestPolledPeerLostWithinMessage(t *testing.T) {
	throttle := newThrottle(1 << 20)
	client, server := connectPolled(t, throttle)
	throttle.allow(40_000)
	in := writeToPoller(t, throttle, client, server, inlineMessage(1))
	failed := make(chan error, 1)
	go func() { failed <- in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())) }()
	client.Abort(errEnough)
	err := <-failed
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.ErrorContains(t, err, errEnough.Error())
}

// TestPolledSeveralReaders checks that if several goroutines call Next, each message is returned to
// exactly one of them and can be read there.
func TestPolledSeveralReaders(t *testing.T) {
	client, server := connectPolled(t, newThrottle(4000))
	const readers, count = 4, 40
	got := make(chan string, count)
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for range count / readers {
				in, err := server.Next(testContext(t))
				if err == nil {
					err = in.Read(testContext(t), pipe.NewAllocation(in.Descriptor()))
				}
				if err != nil {
					got <- err.Error()
					continue
				}
				got <- string(in.Descriptor().Metadata)
			}
		})
	}
	want := map[string]bool{}
	for i := range count {
		m := message(i, []int{i * 700}, nil)
		want[string(m.Metadata)] = true
		write(t, client, m)
	}
	all.Wait()
	for range count {
		text := <-got
		require.True(t, want[text], text)
		delete(want, text)
	}
}

// TestPolledDiscardWhileNextBlocks checks that after one goroutine has discarded a message whose
// bytes are still arriving, a goroutine that is blocked in Next gets the next message.
func TestPolledDiscardWhileNextBlocks(t *testing.T) {
	throttle := newThrottle(1 << 20)
	client, server := connectPolled(t, throttle)
	throttle.allow(40_000)
	in := writeToPoller(t, throttle, client, server, inlineMessage(1))
	other := make(chan *pipe.Incoming, 1)
	go func() {
		second, _ := server.Next(testContext(t))
		other <- second
	}()
	require.NoError(t, in.Discard(testContext(t)))
	write(t, client, inlineMessage(2))
	throttle.allow(1 << 40)
	second := <-other
	require.NotNil(t, second)
	same(t, inlineMessage(2), second.Descriptor(), read(t, second))
}

// TestPolledReadCancelledWhileNextBlocks checks that after the Read of one goroutine was cancelled
// while bytes were arriving, a goroutine that is blocked in Next gets the next message.
func TestPolledReadCancelledWhileNextBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := newThrottle(1 << 20)
		client, server := connectPolled(t, throttle)
		throttle.allow(40_000)
		in := writeToPoller(t, throttle, client, server, inlineMessage(1))
		other := make(chan *pipe.Incoming, 1)
		go func() {
			second, _ := server.Next(testContext(t))
			other <- second
		}()
		<-time.NewTimer(time.Second).C // no goroutine is about to promote another
		ctx, cancel := cancelled(t)
		throttle.setOnPoll(func() { throttle.allowed = 1000; cancel() })
		require.ErrorIs(t, in.Read(ctx, pipe.NewAllocation(in.Descriptor())), errEnough)
		throttle.setOnPoll(nil)
		write(t, client, inlineMessage(2))
		throttle.allow(1 << 40)
		second := <-other
		require.NotNil(t, second)
		same(t, inlineMessage(2), second.Descriptor(), read(t, second))
		second.Release()
		server.Abort(nil)
		client.Abort(nil)
	})
}
