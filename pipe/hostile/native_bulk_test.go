package hostile_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// chunk is one of n bytes for a transfer on lane 0.
func (n *intruder) chunk(id uint64, length int, crc bool, trailer native.ChunkTrailer) []byte {
	p := native.ChunkHeader{ID: n.ours(id), Length: length, CRC: crc}.Append(nil)
	return trailer.Append(append(p, make([]byte, length)...))
}

// listensBit is in the ids of what the end that listens sends.
const listensBit = 1 << 63

// ours is the id of a transfer from the attacker, theirs of one from the victim.
func (n *intruder) ours(id uint64) uint64 {
	if n.even {
		return id | listensBit
	}
	return id
}

func (n *intruder) theirs(id uint64) uint64 {
	if n.even {
		return id
	}
	return id | listensBit
}

// reading has the victim read a payload of n bytes, which it waits for on the
// bulk connection.
func (n *intruder) reading(size uint64) (bulk *raw, read <-chan error) {
	n.t.Helper()
	return n.readingUnder(n.t.Context(), size)
}

func (n *intruder) readingUnder(ctx context.Context, size uint64) (bulk *raw, read <-chan error) {
	n.t.Helper()
	n.message(native.Message{Payloads: []native.Payload{{Length: size}}})
	in, err := n.pipe.Next(n.t.Context())
	require.NoError(n.t, err)
	result := make(chan error, 1)
	go func() { result <- in.Read(ctx, pipe.NewAllocation(in.Descriptor())) }()
	n.hears(native.Ready)
	return n.bulk(), result
}

// Chunks that no peer of ours sends.
func TestNativeMalformedChunks(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, malformedChunks)
}

func malformedChunks(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	const size = 100_000
	good := func(n *intruder) []byte { return n.chunk(0, 1000, false, native.ChunkTrailer{}) }
	bend := func(at int, with ...byte) func(*intruder) []byte {
		return func(n *intruder) []byte { return bent(good(n), at, with...) }
	}
	for name, c := range map[string]struct {
		bytes  func(*intruder) []byte
		reason error
	}{
		"empty":              {bend(8, 0, 0, 0, 0), pipe.ErrProtocol},
		"too long":           {bend(8, 1, 0, 16, 0), pipe.ErrProtocol},
		"unknown flag":       {bend(14, 2), pipe.ErrProtocol},
		"reserved":           {bend(15, 1), pipe.ErrProtocol},
		"unknown status":     {bend(1016, 2), pipe.ErrProtocol},
		"sum without a flag": {bend(1020, 1), pipe.ErrProtocol},
		"wrong sum":          {func(n *intruder) []byte { return n.chunk(0, 1000, true, native.ChunkTrailer{Sum: 1}) }, pipe.ErrChecksum},
		"beyond the end":     {func(n *intruder) []byte { return n.chunk(0, size+1, false, native.ChunkTrailer{}) }, pipe.ErrProtocol},
		"beyond the end later": {func(n *intruder) []byte {
			return append(good(n), n.chunk(0, size-999, false, native.ChunkTrailer{})...)
		}, pipe.ErrProtocol},
		"garbage": {func(*intruder) []byte { return slices.Repeat([]byte("garbage"), 10) }, pipe.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			bulk, read := n.reading(size)
			bulk.send(c.bytes(n))
			requireError(t, <-read, "bulk", c.reason)
			await(t, func() bool { return n.pipe.Err() != nil }, "the pipe breaks")
			n.first.Close() // the victim would give it a second to do so
			n.requireDown([]string{"bulk"}, c.reason)
			bulk.ended()
			v.unharmed(t)
		})
	}
}

// Chunks for transfers that nobody waits for are thrown away; a void one ends its
// transfer alone.
func TestNativeUnwantedChunks(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, unwantedChunks)
}

func unwantedChunks(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	const size = 100_000
	n := open(t)
	bulk, read := n.reading(size)
	for _, id := range []uint64{1, 1 << 16, 1<<64 - 1} {
		bulk.send(n.chunk(id, 1<<20, false, native.ChunkTrailer{}))
	}
	bulk.send(n.chunk(0, size, false, native.ChunkTrailer{}), n.chunk(0, size, false, native.ChunkTrailer{}))
	require.NoError(t, <-read)

	n.message(native.Message{Payloads: []native.Payload{{Length: size}}})
	in, err := n.pipe.Next(t.Context())
	require.NoError(t, err)
	again := make(chan error, 1)
	go func() { again <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
	n.await(func() bool { return len(n.heard[controlStream]) >= 2*(native.HeaderSize+16) })
	bulk.send(n.chunk(1<<16, 10, false, native.ChunkTrailer{}), n.chunk(1<<16, 10, false, native.ChunkTrailer{Void: true}))
	requireError(t, <-again, "bulk", pipe.ErrAborted) // by a sender that does not say why
	require.NoError(t, n.pipe.Err(), "the pipe goes on")
	n.exchange()
	v.unharmed(t)
	n.pipe.Abort(pipe.ErrClosed)
}

// A void chunk comes before the word that its message is given up, and why.
func TestNativeReasonBehindVoidChunk(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, reasonBehindVoidChunk)
}

func reasonBehindVoidChunk(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	const size = 100_000
	n := open(t)
	bulk, regretted := n.reading(size)
	n.message(native.Message{Payloads: []native.Payload{{Length: size}}})
	in, err := n.pipe.Next(t.Context())
	require.NoError(t, err)
	wanted := make(chan error, 1)
	go func() { wanted <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
	n.awaitControl(native.Ready, 2)
	bulk.send(n.chunk(0, 10, false, native.ChunkTrailer{Void: true}), n.chunk(1<<16, size, false, native.ChunkTrailer{}))
	require.NoError(t, <-wanted, "the void chunk has been taken in")
	n.control(native.Control{Kind: native.Abort, Text: "changed my mind"})
	err = <-regretted
	require.ErrorIs(t, err, pipe.ErrAborted)
	require.ErrorContains(t, err, "changed my mind")
	n.exchange()
	v.unharmed(t)
	n.pipe.Abort(pipe.ErrClosed)
}

// The bulk connection ends, in one way or another, which is the end of the pipe.
func TestNativeBulkEnds(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, bulkEnds)
}

func bulkEnds(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	for how, leave := range departures {
		t.Run(how, func(t *testing.T) {
			n := open(t)
			bulk, read := n.reading(1 << 20)
			bulk.send(n.chunk(0, 1000, false, native.ChunkTrailer{}), n.chunk(0, 1000, false, native.ChunkTrailer{})[:500])
			leave(bulk)
			requireError(t, <-read, "bulk", pipe.ErrPeerLost)
			await(t, func() bool { return n.pipe.Err() != nil }, "the pipe breaks")
			n.first.Close() // the victim would give it a second to do so
			n.requireDown([]string{"bulk"}, pipe.ErrPeerLost)
			v.unharmed(t)
		})
	}
}

// An id is good for one connection; whoever guesses gets nowhere.
func TestNativeSecondBulkConnection(t *testing.T) {
	v := newVictim(t)
	n := dialNatively(t, v)
	bulk, read := n.reading(1000_000)
	second := n.askForBulk()
	v.log.requireRefused(t, second.local(), pipe.ErrProtocol)
	second.ended()
	stranger := v.visitWith(t, request(12345))
	stranger.ended()
	bulk.send(n.chunk(0, 1000_000, false, native.ChunkTrailer{}))
	require.NoError(t, <-read)
	n.leave()
	v.quiet(t)
	v.alive(t)
}

// A peer that asks for memory to be sent and does not take it in holds up the
// writer alone, who can give up.
func TestNativeBulkNotTakenIn(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, bulkNotTakenIn)
}

func bulkNotTakenIn(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	n := open(t)
	src := make([]byte, much)
	op := n.pipe.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(src), TargetDevice: device.CPU()}}})
	n.await(func() bool { return len(n.heard[messageStream]) > 0 })
	n.control(native.Control{Kind: native.Ready, Lane: 1, Number: n.theirs(0)})
	n.bulk()
	v.unharmed(t)
	require.ErrorIs(t, op.Wait(cancelled(t)), pipe.ErrCancelled)
	clear(src) // nobody touches it any more
	n.hears(native.Abort)
	v.unharmed(t)
	n.pipe.Abort(pipe.ErrClosed)
}
