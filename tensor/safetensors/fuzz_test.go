package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// FuzzDecode reads arbitrary bytes as a file. It requires that reading does not panic, allocates
// memory only in proportion to the bytes, and accepts only headers that are JSON and tensors that
// survive a round trip.
func FuzzDecode(f *testing.F) {
	for _, path := range append(must(filepath.Glob("testdata/independent/*")), "testdata/digits_split_mlp_init.safetensors") {
		f.Add(must(os.ReadFile(path)))
	}
	f.Add(build(`{"__metadata__":{"\u0041\ud83d\ude00\n":"\\"}}  `))
	f.Add(build(one(1 << 40)))
	f.Add(build(entries(`"dtype":"F4","shape":[2],"data_offsets":[0,1]`), 1))
	f.Fuzz(checkFile)
}

// FuzzHeader reads files of an arbitrary header and arbitrary data, whose length field always
// matches the header, and requires the same as FuzzDecode.
func FuzzHeader(f *testing.F) {
	for _, path := range must(filepath.Glob("testdata/independent/*")) {
		file := must(os.ReadFile(path))
		end := 8 + binary.LittleEndian.Uint64(file)
		f.Add(string(file[8:end]), file[end:])
	}
	f.Add(`{"__metadata__":{"\u0041\ud83d\ude00\n":"\\"}}  `, []byte{})
	f.Fuzz(func(t *testing.T, header string, data []byte) { checkFile(t, build(header, data...)) })
}

func checkFile(t *testing.T, file []byte) {
	var m meter
	options := Options{Allocator: &m, HeaderLimit: 1 << 16, TensorLimit: 100}
	if _, err := NewReader(bytes.NewReader(file), options); err != nil {
		return
	}
	header := file[8 : 8+binary.LittleEndian.Uint64(file)]
	require.True(t, json.Valid(header), "not JSON")
	tensors, metadata, err := Decode(bytes.NewReader(file), options)
	for _, size := range m.sizes {
		require.LessOrEqual(t, size, max(initialAlloc, 4*len(file)))
	}
	if err == nil {
		checkAccepted(t, header, tensors, metadata)
	}
}

// checkAccepted requires that tensors and metadata, which this package has read from a file with
// the given header, match what encoding/json finds in the header, and that they are unchanged after
// they are written and read again.
func checkAccepted(t *testing.T, header []byte, tensors map[string]*tensor.Tensor, metadata map[string]string) {
	var seen map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(header, &seen))
	if raw, ok := seen[metadataKey]; ok {
		var want map[string]string
		require.NoError(t, json.Unmarshal(raw, &want))
		require.Len(t, metadata, len(want))
		for key, value := range want {
			require.Equal(t, value, metadata[key])
		}
		delete(seen, metadataKey)
	}
	require.Len(t, tensors, len(seen))
	for name, raw := range seen {
		var want struct {
			DType string
			Shape []int
		}
		require.NoError(t, json.Unmarshal(raw, &want))
		require.Equal(t, strings.ToLower(want.DType), tensors[name].DType().String())
		require.Equal(t, want.Shape, tensors[name].Shape())
	}
	roundTrip(t, tensors, metadata)
}
