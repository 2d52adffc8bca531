package hostile_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// eagerPayload returns the header of a message with one eager payload of n bytes.
func eagerPayload(n uint64) native.Message {
	return native.Message{Payloads: []native.Payload{{Length: n, Eager: true}}}
}

// eagerChunk returns a chunk of n bytes, each of which is b, of the payload of the message with this
// number.
func eagerChunk(message uint64, n int, b byte, trailer native.ChunkTrailer) []byte {
	p := native.ChunkHeader{ID: native.TransferID(message, 0), Length: n, Eager: true}.Append(nil)
	return trailer.Append(append(p, bytes.Repeat([]byte{b}, n)...))
}

// withCredit opens the bulk connection by a first message, which the victim reads, and returns the
// connection and the credit that the victim grants.
func (n *nativeAttack) withCredit() (bulk *raw, credit int) {
	n.t.Helper()
	const size = 100_000
	bulk, read := n.startRead(size)
	bulk.send(n.chunk(0, size, false, native.ChunkTrailer{}))
	require.NoError(n.t, <-read)
	return bulk, int(n.waitControl(native.Credit).Number)
}

// TestNativeEager checks that a peer can send eager chunks before and after their message, and gets
// the credit back once they are read, when it asks for it.
func TestNativeEager(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	a := dialWithFeature(t, v, wire.FeatureEager)
	bulk, credit := a.withCredit()
	require.Positive(t, credit)
	const n = 300_000
	bulk.send(eagerChunk(1, n, 1, native.ChunkTrailer{}))
	a.message(eagerPayload(n))
	a.message(eagerPayload(n))
	bulk.send(eagerChunk(2, n, 2, native.ChunkTrailer{}))
	for i := range 2 {
		in, err := a.pipe.Next(t.Context())
		require.NoError(t, err)
		into := pipe.NewAllocation(in.Descriptor())
		require.NoError(t, in.Read(t.Context(), into))
		require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, n), into.Payloads[0])
	}
	a.control(native.Control{Kind: native.WantCredit})
	returned := a.nthControl(native.Credit, 2)
	require.EqualValues(t, 2*n, returned.Number)
	bulk.Close()
	require.NoError(t, a.first.Close())
	a.pipe.Abort(nil)
}

// TestNativeHostileEager checks that a peer that lies about eager transfers, or does not keep its
// credit, breaks its pipe, and only that.
func TestNativeHostileEager(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	for name, c := range map[string]struct {
		features wire.Features
		conns    []string
		attack   func(a *nativeAttack)
	}{
		"credit without the feature": {0, []string{"control"}, func(a *nativeAttack) {
			a.control(native.Control{Kind: native.Credit, Number: 1 << 20})
		}},
		"request for credit without the feature": {0, []string{"control"}, func(a *nativeAttack) {
			a.control(native.Control{Kind: native.WantCredit})
		}},
		"too much credit": {wire.FeatureEager, []string{"control"}, func(a *nativeAttack) {
			a.control(native.Control{Kind: native.Credit, Number: 1 << 31})
		}},
		"credit that was not used": {wire.FeatureEager, []string{"control"}, func(a *nativeAttack) {
			a.control(native.Control{Kind: native.Credit, Number: 1 << 20})
			a.control(native.Control{Kind: native.Credit, Number: 1})
		}},
		"no credit": {wire.FeatureEager, []string{"message"}, func(a *nativeAttack) {
			a.message(eagerPayload(100_000))
		}},
		"small": {wire.FeatureEager, []string{"message"}, func(a *nativeAttack) {
			a.withCredit()
			a.message(eagerPayload(native.MinEager - 1))
		}},
		"large": {wire.FeatureEager, []string{"message"}, func(a *nativeAttack) {
			a.withCredit()
			a.message(eagerPayload(native.MaxEager + 1))
		}},
		"larger than any memory": {wire.FeatureEager, []string{"message"}, func(a *nativeAttack) {
			a.withCredit()
			a.message(eagerPayload(1<<32 + 100_000))
		}},
		"more than the credit": {wire.FeatureEager, []string{"bulk"}, func(a *nativeAttack) {
			bulk, credit := a.withCredit()
			last := 0
			for ; credit >= 0; credit -= native.MaxEager {
				a.message(eagerPayload(native.MaxEager))
				_, err := a.pipe.Next(a.t.Context()) // the part is announced
				require.NoError(a.t, err)
				last++
			}
			bulk.send(eagerChunk(uint64(last), 1, 0, native.ChunkTrailer{}))
		}},
		"not for a host": {wire.FeatureEager, []string{"message"}, func(a *nativeAttack) {
			a.withCredit()
			cpu1 := device.Device{Kind: device.KindCPU, Index: 1}
			a.message(native.Message{Tensors: []native.Tensor{{Length: 100_000, Eager: true, Source: cpu1, Target: device.CPU()}}})
		}},
		"chunk longer than the part": {wire.FeatureEager, []string{"bulk"}, func(a *nativeAttack) {
			bulk, _ := a.withCredit()
			a.message(eagerPayload(100_000))
			_, err := a.pipe.Next(a.t.Context()) // the part is announced
			require.NoError(a.t, err)
			bulk.send(eagerChunk(1, 60_000, 0, native.ChunkTrailer{}))
			bulk.send(eagerChunk(1, 60_000, 0, native.ChunkTrailer{}))
		}},
		"part shorter than its chunks": {wire.FeatureEager, []string{"bulk", "message"}, func(a *nativeAttack) {
			bulk, _ := a.withCredit()
			bulk.send(eagerChunk(1, 200_000, 0, native.ChunkTrailer{}))
			a.message(eagerPayload(100_000))
		}},
		"chunk of no part, beyond the credit": {wire.FeatureEager, []string{"bulk"}, func(a *nativeAttack) {
			bulk, credit := a.withCredit()
			for i := range credit/native.MinEager + 1 {
				bulk.send(eagerChunk(uint64(1000+i), 1, 0, native.ChunkTrailer{}))
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a := dialWithFeature(t, v, c.features)
			c.attack(a)
			a.requireBrokenNative(c.conns, pipe.ErrProtocol)
		})
	}
	v.requireServing(t)
}
