package codec

import (
	"bytes"
	"encoding/gob"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// arguments is an argument list of a small call.
type arguments struct {
	Step  int
	Rate  float64
	Name  string
	Train bool
	Input *tensor.Tensor
}

// plainArguments has the fields of arguments for gob, which cannot encode tensors.
type plainArguments struct {
	Step  int
	Rate  float64
	Name  string
	Train bool
	Shape []int
	Input []float32
}

// round holds what both ends of a connection reuse for each message.
type round struct {
	encoder  *Encoder
	decoder  *Decoder
	buf      []byte
	storages []*tensor.Storage
}

func newRound() *round {
	r := NewRegistry()
	return &round{encoder: NewEncoder(r, Limits{}), decoder: NewDecoder(r, Limits{})}
}

func (r *round) encode(ptr any) error {
	r.encoder.Reset(r.buf[:0])
	if err := r.encoder.Encode(ptr); err != nil {
		return err
	}
	data, tensors, err := r.encoder.Finish()
	if len(tensors) > 0 && tensors[0].Buffer.Len() == 0 {
		return ErrStorage
	}
	r.buf = data
	return err
}

func (r *round) decode(ptr any) error {
	if err := r.decoder.Reset(r.buf); err != nil {
		return err
	}
	if err := r.decoder.Supply(r.storages); err != nil {
		return err
	}
	if err := r.decoder.Decode(ptr); err != nil {
		return err
	}
	return r.decoder.Finish()
}

func sampleArguments(t testing.TB) *arguments {
	return &arguments{Step: 1000, Rate: 1e-3, Name: "layer.0.weight", Train: true, Input: arange(t, 2, 2)}
}

func TestAllocations(t *testing.T) {
	r, args := newRound(), sampleArguments(t)
	require.NoError(t, r.encode(args))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := r.encode(args); err != nil {
			t.Error(err)
		}
	}))

	r.storages = []*tensor.Storage{args.Input.Storage()}
	var got arguments
	require.NoError(t, r.decode(&got))
	require.Equal(t, args.Name, got.Name)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		if err := r.decode(&got); err != nil {
			t.Error(err)
		}
	}), 3.0, "the text, and the tensor with its shape")
}

// TestPointersInInterfacesAllocate checks that a pointer in an interface is encoded without an
// allocation. Decoding two of them to interfaces allocates no more than the list and the tensors.
func TestPointersInInterfacesAllocate(t *testing.T) {
	r := newRound()
	values := []any{arange(t, 2, 2), arange(t, 2, 2)}
	require.NoError(t, r.encode(&values))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := r.encode(&values); err != nil {
			t.Error(err)
		}
	}))

	for _, v := range values {
		r.storages = append(r.storages, v.(*tensor.Tensor).Storage())
	}
	var got []any
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		if err := r.decode(&got); err != nil {
			t.Error(err)
		}
	}), 3.0, "the list and the tensors")
	for i := range values {
		same, err := tensor.Equal(values[i].(*tensor.Tensor), got[i].(*tensor.Tensor))
		require.NoError(t, err)
		require.True(t, same)
	}
}

func BenchmarkEncode(b *testing.B) {
	r, args := newRound(), sampleArguments(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := r.encode(args); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(r.buf)), "B/message")
}

func BenchmarkDecode(b *testing.B) {
	r, args := newRound(), sampleArguments(b)
	require.NoError(b, r.encode(args))
	r.storages = []*tensor.Storage{args.Input.Storage()}
	b.ReportAllocs()
	for b.Loop() {
		var got arguments
		if err := r.decode(&got); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecodeOtherVersion decodes a struct to a type that has one field more than the sender's,
// so that fields are matched by name.
func BenchmarkDecodeOtherVersion(b *testing.B) {
	type newer struct {
		arguments `tensorpipe:"-"`
		Step      int
		Rate      float64
		Name      string
		Train     bool
		Input     *tensor.Tensor
		More      int
	}
	r, args := newRound(), sampleArguments(b)
	require.NoError(b, r.encode(args))
	r.storages = []*tensor.Storage{args.Input.Storage()}
	b.ReportAllocs()
	for b.Loop() {
		var got newer
		if err := r.decode(&got); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPeers encodes and decodes the same values with this package and with encoding/gob. The
// gob stream has sent its type descriptions before the measurement.
func BenchmarkPeers(b *testing.B) {
	b.Run("codec", func(b *testing.B) {
		r, args := newRound(), sampleArguments(b)
		r.storages = []*tensor.Storage{args.Input.Storage()}
		b.ReportAllocs()
		for b.Loop() {
			var got arguments
			if r.encode(args) != nil || r.decode(&got) != nil {
				b.Fatal("lost")
			}
		}
	})
	plain := &plainArguments{Step: 1000, Rate: 1e-3, Name: "layer.0.weight", Train: true, Shape: []int{2, 2}, Input: []float32{0, 1, 2, 3}}
	b.Run("codec, no tensor", func(b *testing.B) {
		r := newRound()
		b.ReportAllocs()
		for b.Loop() {
			var got plainArguments
			if r.encode(plain) != nil || r.decode(&got) != nil {
				b.Fatal("lost")
			}
		}
	})
	b.Run("gob", func(b *testing.B) {
		var wire bytes.Buffer
		e, d := gob.NewEncoder(&wire), gob.NewDecoder(&wire)
		b.ReportAllocs()
		for b.Loop() {
			var got plainArguments
			if e.Encode(plain) != nil || d.Decode(&got) != nil {
				b.Fatal("lost")
			}
		}
	})
	b.Run("gob, self-contained", func(b *testing.B) {
		var wire bytes.Buffer
		b.ReportAllocs()
		for b.Loop() {
			var got plainArguments
			if gob.NewEncoder(&wire).Encode(plain) != nil || gob.NewDecoder(&wire).Decode(&got) != nil {
				b.Fatal("lost")
			}
		}
	})
}

func BenchmarkFloats(b *testing.B) {
	values := make([]float64, 1<<14)
	r := newRound()
	b.SetBytes(int64(8 * len(values)))
	b.ReportAllocs()
	for b.Loop() {
		var got []float64
		if r.encode(&values) != nil || r.decode(&got) != nil {
			b.Fatal("lost")
		}
	}
}
