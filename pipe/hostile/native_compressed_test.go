package hostile_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// compressedMessage returns a message with one inline payload that claims to have n bytes and to be
// compressed with S2 to form. The message shares the memory of form.
func compressedMessage(n uint64, form []byte) native.Message {
	return native.Message{Payloads: []native.Payload{{
		Length: n, Inline: true, Codec: compress.S2, CompressedLength: uint64(len(form)), Data: form,
	}}}
}

// compressedForm returns the compressed form of data, in new memory, as an honest peer sends it. It
// fails the test if data does not compress.
func compressedForm(t testing.TB, codec compress.Codec, data []byte) []byte {
	p := compress.New(1).NewCompressor()
	defer p.Release()
	form, err := p.Add(codec, [][]byte{data}, func() error { return nil })
	require.NoError(t, err)
	require.NotNil(t, form)
	return bytes.Join(form, nil)
}

// dialCompressing opens a native pipe to the victim as a client that supports compression, and
// returns it as an attack.
func dialCompressing(t testing.TB, v *victim) *nativeAttack {
	t.Helper()
	return dialWithFeature(t, v, wire.FeatureCompression)
}

// dialWithFeature opens a native pipe to the victim as a client with the given feature, or none if
// that is 0, and returns it as an attack.
func dialWithFeature(t testing.TB, v *victim, feature wire.Features) *nativeAttack {
	t.Helper()
	b := goodBrochure()
	marker := nativeMarker
	marker.Features |= feature
	b.Mark(marker)
	first, answer := v.sendOffer(t, b)
	chosen, ok := answer.Marker()
	require.True(t, ok)
	require.Equal(t, marker, chosen)
	n := newNativeAttack(t, first)
	mine := request(answer.TransportRegistrationIDs[wire.BulkConnection])
	n.bulk = func() *raw {
		r := v.dialRawWith(t, mine)
		require.Equal(t, mine, r.read(), "the welcome")
		r.frame(mine)
		return r
	}
	first.send(muxHeader(muxCredit, muxSYN, messageStream, 0), muxHeader(muxCredit, muxSYN, controlStream, 0))
	n.startReading()
	var err error
	n.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	return n
}

// badForms returns, by name, compressed forms that do not decompress to 300,000 zeros. These would
// take two blocks.
func badForms(t testing.TB) map[string][]byte {
	bomb := compressedForm(t, compress.S2, make([]byte, 64<<20))
	good := compressedForm(t, compress.S2, make([]byte, 300_000))
	other := bytes.Clone(good)
	other[8] ^= 1 // the length that the first block claims
	return map[string][]byte{
		"garbage":           bytes.Repeat([]byte{0xa5}, 200),
		"a table alone":     make([]byte, 8),
		"less than a table": {1, 0, 0},
		"more blocks":       bomb,
		"half":              good[:len(good)/2],
		"another length":    other,
		"long blocks":       binary.LittleEndian.AppendUint64(nil, 1<<63-1),
	}
}

// TestNativeMalformedCompression checks that a malformed compressed payload makes Read fail with
// ErrProtocol and breaks the pipe, both inline and on the bulk connection.
func TestNativeMalformedCompression(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	const n = 300_000
	for name, form := range badForms(t) {
		t.Run(name+", inline", func(t *testing.T) {
			a := dialCompressing(t, v)
			a.message(compressedMessage(n, form))
			in, err := a.pipe.Next(t.Context())
			require.NoError(t, err)
			require.Equal(t, n, in.Descriptor().Payloads[0].Length)
			err = in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
			require.ErrorIs(t, err, pipe.ErrProtocol)
			require.ErrorIs(t, err, compress.ErrCorrupt)
			a.requireBrokenNative([]string{""}, pipe.ErrProtocol)
			v.requireHealthy(t)
		})
		t.Run(name+", in bulk", func(t *testing.T) {
			a := dialCompressing(t, v)
			m := compressedMessage(n, form)
			m.Payloads[0].Inline = false
			a.message(m)
			in, err := a.pipe.Next(t.Context())
			require.NoError(t, err)
			read := make(chan error, 1)
			go func() { read <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
			ready := a.waitControl(native.Ready)
			bulk := a.bulk()
			p := native.ChunkHeader{ID: ready.Number, Lane: ready.Lane, Length: len(form)}.Append(nil)
			p = append(p, form...)
			bulk.send(native.ChunkTrailer{}.Append(p))
			err = <-read
			require.ErrorIs(t, err, pipe.ErrProtocol)
			require.ErrorIs(t, err, compress.ErrCorrupt)
			a.requireBrokenNative([]string{""}, pipe.ErrProtocol)
			v.requireHealthy(t)
		})
	}
}

// TestNativeCompressedPayload checks that a well-formed compressed payload of the attacker is read
// correctly. It shows that the attacks with malformed ones fail for the right reason.
func TestNativeCompressedPayload(t *testing.T) {
	v := newVictim(t)
	a := dialCompressing(t, v)
	data := bytes.Repeat([]byte("honest "), 100_000)
	a.message(compressedMessage(uint64(len(data)), compressedForm(t, compress.S2, data)))
	in, err := a.pipe.Next(t.Context())
	require.NoError(t, err)
	memory := pipe.NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(t.Context(), memory))
	require.True(t, bytes.Equal(data, memory.Payloads[0]))
	a.closeOrderly()
	v.requireIdle(t)
}
