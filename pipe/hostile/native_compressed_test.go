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

// squeezed is a message of one payload of n bytes that says that it travels as
// form, inside the message.
func squeezed(n uint64, form []byte) native.Message {
	return native.Message{Payloads: []native.Payload{{
		Length: n, Inline: true, Codec: compress.S2, Form: uint64(len(form)), Data: form,
	}}}
}

// formOf is the compressed form of data, as an honest peer makes it.
func formOf(t testing.TB, codec compress.Codec, data []byte) []byte {
	p := compress.New(1).NewPacking()
	defer p.Release()
	form, err := p.Add(codec, [][]byte{data}, func() error { return nil })
	require.NoError(t, err)
	require.NotNil(t, form)
	return bytes.Join(form, nil)
}

// openSqueezing is dialNatively of an attacker that agrees to compression.
func openSqueezing(t testing.TB, v *victim) *intruder {
	t.Helper()
	b := goodBrochure()
	marker := nativeMarker
	marker.Features |= wire.FeatureCompression
	b.Mark(marker)
	first, answer := v.introduce(t, b)
	chosen, ok := answer.Marker()
	require.True(t, ok)
	require.Equal(t, marker, chosen)
	n := newIntruder(t, first)
	mine := request(answer.TransportRegistrationIDs[wire.BulkConnection])
	n.bulk = func() *raw {
		r := v.visitWith(t, mine)
		require.Equal(t, mine, r.read(), "the welcome")
		r.frame(mine)
		return r
	}
	first.send(muxWord(muxCredit, muxSYN, messageStream, 0), muxWord(muxCredit, muxSYN, controlStream, 0))
	n.listen()
	var err error
	n.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	return n
}

// wrongForms are those that do not decode to 300,000 bytes of zeros, which are
// two blocks.
func wrongForms(t testing.TB) map[string][]byte {
	bomb := formOf(t, compress.S2, make([]byte, 64<<20))
	good := formOf(t, compress.S2, make([]byte, 300_000))
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

// A form that does not decode ends the pipe, wherever it travelled, with no more
// memory than the application gave.
func TestNativeWrongForms(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	const n = 300_000
	for name, form := range wrongForms(t) {
		t.Run(name+", inline", func(t *testing.T) {
			a := openSqueezing(t, v)
			a.message(squeezed(n, form))
			in, err := a.pipe.Next(t.Context())
			require.NoError(t, err)
			require.Equal(t, n, in.Descriptor().Payloads[0].Length)
			err = in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
			require.ErrorIs(t, err, pipe.ErrProtocol)
			require.ErrorIs(t, err, compress.ErrCorrupt)
			a.requireDown([]string{""}, pipe.ErrProtocol)
			v.unharmed(t)
		})
		t.Run(name+", in bulk", func(t *testing.T) {
			a := openSqueezing(t, v)
			m := squeezed(n, form)
			m.Payloads[0].Inline = false
			a.message(m)
			in, err := a.pipe.Next(t.Context())
			require.NoError(t, err)
			read := make(chan error, 1)
			go func() { read <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
			ready := a.hears(native.Ready)
			bulk := a.bulk()
			p := native.ChunkHeader{ID: ready.Number, Lane: ready.Lane, Length: len(form)}.Append(nil)
			p = append(p, form...)
			bulk.send(native.ChunkTrailer{}.Append(p))
			err = <-read
			require.ErrorIs(t, err, pipe.ErrProtocol)
			require.ErrorIs(t, err, compress.ErrCorrupt)
			a.requireDown([]string{""}, pipe.ErrProtocol)
			v.unharmed(t)
		})
	}
}

// What the attacker compresses as it should be arrives.
func TestNativeHonestForm(t *testing.T) {
	v := newVictim(t)
	a := openSqueezing(t, v)
	data := bytes.Repeat([]byte("honest "), 100_000)
	a.message(squeezed(uint64(len(data)), formOf(t, compress.S2, data)))
	in, err := a.pipe.Next(t.Context())
	require.NoError(t, err)
	memory := pipe.NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(t.Context(), memory))
	require.True(t, bytes.Equal(data, memory.Payloads[0]))
	a.leave()
	v.quiet(t)
}
