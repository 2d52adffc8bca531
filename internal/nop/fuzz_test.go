package nop

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// steps are the calls that FuzzDecoder may make, one for each value of a script byte.
var steps = []read{u64, u32, i64, i32, truth, str, ints, array, mapping, struct3, pair, variant, empty}

var empty read = func(d *Decoder) { d.Empty() }

// FuzzDecoder reads arbitrary bytes with an arbitrary script of methods.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte{9, 5, 7, 7}, []byte("\xb9\x03\xbd\x05meta1\xba\x00\xba\x00"))
	f.Add([]byte{11, 9}, []byte("\xb8\x01\xb9\x01\x00"))
	f.Add([]byte{6, 8}, []byte("\xbc\x08\x01\x00\x00\x00\x00\x00\x00\x00\xbb\x01\x01\x00"))
	f.Fuzz(func(t *testing.T, script, p []byte) {
		d := NewDecoder(p)
		for _, s := range script {
			before, failed := d.Offset(), d.Err()
			steps[int(s)%len(steps)](&d)
			if d.Offset() < before || d.Offset() > len(p) {
				t.Fatalf("offset %d after %d of %d", d.Offset(), before, len(p))
			}
			if failed != nil && (d.Err() != failed || d.Offset() != before) {
				t.Fatalf("read on after %v", failed)
			}
		}
		require.True(t, d.Finish() != nil || d.Offset() == len(p))
	})
}

// FuzzIntegers checks that an integer read from arbitrary bytes is encoded in at most that many
// bytes, which decode to the same value.
func FuzzIntegers(f *testing.F) {
	f.Add([]byte{0x80, 0x80})
	f.Add([]byte{0x85, 0x80, 0})
	f.Add([]byte{0xbf})
	f.Fuzz(func(t *testing.T, p []byte) {
		d := NewDecoder(p)
		v := d.Uint64()
		again := NewDecoder(AppendUint(nil, v))
		require.Equal(t, v, again.Uint64())
		require.True(t, d.Err() != nil || again.Offset() <= d.Offset())

		d = NewDecoder(p)
		n := d.Int64()
		again = NewDecoder(AppendInt(nil, n))
		require.Equal(t, n, again.Int64())
		require.True(t, d.Err() != nil || again.Offset() <= d.Offset())
	})
}

// FuzzDump checks that Dump prints every byte, in bounded space.
func FuzzDump(f *testing.F) {
	f.Add([]byte("\xb9\x03\xbd\x05meta1\xba\x00\xba\x00"))
	f.Add(bytes.Repeat([]byte{0xba, 0x01}, 100))
	f.Fuzz(func(t *testing.T, p []byte) {
		var out bytes.Buffer
		require.NoError(t, Dump(&out, p))
		require.LessOrEqual(t, out.Len(), 256*(len(p)+1))
		require.Equal(t, len(p) == 0, out.Len() == 0)
	})
}

func BenchmarkAppendString(b *testing.B) {
	b.ReportAllocs()
	p := make([]byte, 0, 64)
	for b.Loop() {
		p = AppendString(p[:0], "a string")
	}
}

func BenchmarkBytes(b *testing.B) {
	b.ReportAllocs()
	p := AppendString(nil, "a string")
	for b.Loop() {
		d := NewDecoder(p)
		if len(d.Bytes()) != 8 {
			b.Fatal(d.Err())
		}
	}
}
