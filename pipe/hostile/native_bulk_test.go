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

// chunk returns the bytes of a chunk with length zero bytes of data, for the attacker's transfer
// with the number id on lane 0. crc is true if the chunk is to announce a checksum, which trailer
// has.
func (n *nativeAttack) chunk(id uint64, length int, crc bool, trailer native.ChunkTrailer) []byte {
	p := native.ChunkHeader{ID: n.attackerID(id), Length: length, CRC: crc}.Append(nil)
	return trailer.Append(append(p, make([]byte, length)...))
}

// listensBit is set in the ids of transfers from the listening end.
const listensBit = 1 << 63

// attackerID returns the id on the wire of the attacker's transfer with the number id. It differs
// between an attacker that dials and one that listens. victimID does the same for transfers of the
// victim.
func (n *nativeAttack) attackerID(id uint64) uint64 {
	if n.even {
		return id | listensBit
	}
	return id
}

func (n *nativeAttack) victimID(id uint64) uint64 {
	if n.even {
		return id
	}
	return id | listensBit
}

// startRead announces a payload of size bytes, makes the victim begin to read it, and opens the
// bulk connection, on which the victim expects the payload. It returns that connection; the Go
// channel receives the result of the Read.
func (n *nativeAttack) startRead(size uint64) (bulk *raw, read <-chan error) {
	n.t.Helper()
	return n.startReadWith(n.t.Context(), size)
}

func (n *nativeAttack) startReadWith(ctx context.Context, size uint64) (bulk *raw, read <-chan error) {
	n.t.Helper()
	n.message(native.Message{Payloads: []native.Payload{{Length: size}}})
	in, err := n.pipe.Next(n.t.Context())
	require.NoError(n.t, err)
	result := make(chan error, 1)
	go func() { result <- in.Read(ctx, pipe.NewAllocation(in.Descriptor())) }()
	n.waitControl(native.Ready)
	return n.bulk(), result
}

// TestNativeMalformedChunks checks that malformed chunks on the bulk connection break the pipe.
func TestNativeMalformedChunks(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, malformedChunks)
}

func malformedChunks(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	const size = 100_000
	good := func(n *nativeAttack) []byte { return n.chunk(0, 1000, false, native.ChunkTrailer{}) }
	patch := func(at int, with ...byte) func(*nativeAttack) []byte {
		return func(n *nativeAttack) []byte { return patched(good(n), at, with...) }
	}
	for name, c := range map[string]struct {
		bytes  func(*nativeAttack) []byte
		reason error
	}{
		"empty":              {patch(8, 0, 0, 0, 0), pipe.ErrProtocol},
		"too long":           {patch(8, 1, 0, 16, 0), pipe.ErrProtocol},
		"unknown flag":       {patch(14, 2), pipe.ErrProtocol},
		"reserved":           {patch(15, 1), pipe.ErrProtocol},
		"unknown status":     {patch(1016, 2), pipe.ErrProtocol},
		"sum without a flag": {patch(1020, 1), pipe.ErrProtocol},
		"wrong sum":          {func(n *nativeAttack) []byte { return n.chunk(0, 1000, true, native.ChunkTrailer{Sum: 1}) }, pipe.ErrChecksum},
		"beyond the end":     {func(n *nativeAttack) []byte { return n.chunk(0, size+1, false, native.ChunkTrailer{}) }, pipe.ErrProtocol},
		"beyond the end later": {func(n *nativeAttack) []byte {
			return append(good(n), n.chunk(0, size-999, false, native.ChunkTrailer{})...)
		}, pipe.ErrProtocol},
		"garbage": {func(*nativeAttack) []byte { return slices.Repeat([]byte("garbage"), 10) }, pipe.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			bulk, read := n.startRead(size)
			bulk.send(c.bytes(n))
			requireError(t, <-read, "bulk", c.reason)
			waitFor(t, func() bool { return n.pipe.Err() != nil }, "the pipe breaks")
			n.first.Close() // the victim would give it a second to do so
			n.requireBrokenNative([]string{"bulk"}, c.reason)
			bulk.waitClosed()
			v.requireHealthy(t)
		})
	}
}

// TestNativeUnwantedChunks checks that chunks of unknown transfers are discarded, and that a void
// chunk, with which a sender ends a transfer early, ends only its transfer.
func TestNativeUnwantedChunks(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, unwantedChunks)
}

func unwantedChunks(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	const size = 100_000
	n := open(t)
	bulk, read := n.startRead(size)
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
	n.waitFor(func() bool { return len(n.received[controlStream]) >= 2*(native.HeaderSize+16) })
	bulk.send(n.chunk(1<<16, 10, false, native.ChunkTrailer{}), n.chunk(1<<16, 10, false, native.ChunkTrailer{Discarded: true}))
	requireError(t, <-again, "bulk", pipe.ErrAborted) // the sender gives no reason
	require.NoError(t, n.pipe.Err(), "the pipe stays open")
	n.exchange()
	v.requireHealthy(t)
	n.pipe.Abort(pipe.ErrClosed)
}

// TestNativeAbortReasonAfterVoidChunk checks that a Read fails with the reason of the abort frame
// of its message, also if a void chunk, which has no reason, ends a transfer of the message first.
func TestNativeAbortReasonAfterVoidChunk(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, abortReasonAfterVoidChunk)
}

func abortReasonAfterVoidChunk(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	const size = 100_000
	n := open(t)
	bulk, regretted := n.startRead(size)
	n.message(native.Message{Payloads: []native.Payload{{Length: size}}})
	in, err := n.pipe.Next(t.Context())
	require.NoError(t, err)
	wanted := make(chan error, 1)
	go func() { wanted <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
	n.nthControl(native.Ready, 2)
	bulk.send(n.chunk(0, 10, false, native.ChunkTrailer{Discarded: true}), n.chunk(1<<16, size, false, native.ChunkTrailer{}))
	require.NoError(t, <-wanted, "the void chunk was handled before")
	n.control(native.Control{Kind: native.Abort, Text: "changed my mind"})
	err = <-regretted
	require.ErrorIs(t, err, pipe.ErrAborted)
	require.ErrorContains(t, err, "changed my mind")
	n.exchange()
	v.requireHealthy(t)
	n.pipe.Abort(pipe.ErrClosed)
}

// TestNativeBulkEnds checks that the end of the bulk connection breaks the pipe.
func TestNativeBulkEnds(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, bulkEnds)
}

func bulkEnds(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	for ending, endConn := range connEndings {
		t.Run(ending, func(t *testing.T) {
			n := open(t)
			bulk, read := n.startRead(1 << 20)
			bulk.send(n.chunk(0, 1000, false, native.ChunkTrailer{}), n.chunk(0, 1000, false, native.ChunkTrailer{})[:500])
			endConn(bulk)
			requireError(t, <-read, "bulk", pipe.ErrPeerLost)
			waitFor(t, func() bool { return n.pipe.Err() != nil }, "the pipe breaks")
			n.first.Close() // the victim would give it a second to do so
			n.requireBrokenNative([]string{"bulk"}, pipe.ErrPeerLost)
			v.requireHealthy(t)
		})
	}
}

// TestNativeSecondBulkConnection checks that a second connection with the id of the bulk connection
// is rejected, and that the first one still works.
func TestNativeSecondBulkConnection(t *testing.T) {
	v := newVictim(t)
	n := dialNative(t, v)
	bulk, read := n.startRead(1000_000)
	second := n.askForBulk()
	v.log.requireRejected(t, second.local(), pipe.ErrProtocol)
	second.waitClosed()
	other := v.dialRawWith(t, request(12345))
	other.waitClosed()
	bulk.send(n.chunk(0, 1000_000, false, native.ChunkTrailer{}))
	require.NoError(t, <-read)
	n.closeOrderly()
	v.requireIdle(t)
	v.requireServing(t)
}

// TestNativeBulkNotRead checks that a peer that requests a large part and does not read it blocks
// only the writer of that message, whose write can be cancelled.
func TestNativeBulkNotRead(t *testing.T) {
	t.Parallel()
	inBothNativeRoles(t, bulkNotRead)
}

func bulkNotRead(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	n := open(t)
	src := make([]byte, hugeSize)
	op := n.pipe.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(src), TargetDevice: device.CPU()}}})
	n.waitFor(func() bool { return len(n.received[messageStream]) > 0 })
	n.control(native.Control{Kind: native.Ready, Lane: 1, Number: n.victimID(0)})
	n.bulk()
	v.requireHealthy(t)
	require.ErrorIs(t, op.Wait(cancelled(t)), pipe.ErrCancelled)
	clear(src) // must not be in use any more
	n.waitControl(native.Abort)
	v.requireHealthy(t)
	n.pipe.Abort(pipe.ErrClosed)
}
