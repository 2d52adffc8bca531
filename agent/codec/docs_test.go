package codec

import (
	"encoding/hex"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// docsLayer is the type of the example in docs/wire.md, which calls it Layer.
type docsLayer struct {
	_      struct{} `tensorpipe:"example.Layer"`
	Name   string   `tensorpipe:"name"`
	Shape  []int    `tensorpipe:"shape"`
	Weight *tensor.Tensor
	Extra  any
	Next   *docsLayer
}

// TestDocumentedMessage checks that the example message in docs/wire.md has exactly the bytes that
// the Encoder writes for the documented value, and decodes to that value.
func TestDocumentedMessage(t *testing.T) {
	w, err := tensor.Zeros(tensor.F32, 2, 3)
	require.NoError(t, err)
	value := docsLayer{Name: "a", Shape: []int{2, -3}, Weight: w, Extra: "x", Next: &docsLayer{Name: "b", Weight: w}}
	r := NewRegistry()
	e := NewEncoder(r, Limits{})
	require.NoError(t, e.Encode(&value))
	e.SetHeader("trace", []byte{7})
	data, parts, err := e.Finish()
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/wire.md")
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(page), "```codec\n")
	require.True(t, ok)
	text, _, _ = strings.Cut(text, "```")
	row := regexp.MustCompile(`^([0-9a-f]{4})  ([0-9a-f]{2}(?: [0-9a-f]{2})*)(?:$|  )`)
	var documented []byte
	for line := range strings.Lines(text) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		require.NotNil(t, m, line)
		offset, err := strconv.ParseInt(m[1], 16, 0)
		require.NoError(t, err)
		require.EqualValues(t, len(documented), offset, line)
		p, err := hex.DecodeString(strings.ReplaceAll(m[2], " ", ""))
		require.NoError(t, err)
		documented = append(documented, p...)
	}
	require.Equal(t, hex.EncodeToString(data), hex.EncodeToString(documented))

	var got docsLayer
	require.NoError(t, decode(t, r, &got, documented, parts))
	require.Same(t, got.Weight, got.Next.Weight)
	got.Weight, got.Next.Weight = w, w
	require.Equal(t, value, got)
}

// TestDocumentedKinds checks that docs/wire.md lists all kinds with their numbers, and all error
// values that every Registry has.
func TestDocumentedKinds(t *testing.T) {
	page, err := os.ReadFile("../../docs/wire.md")
	require.NoError(t, err)
	names := []string{
		"bool", "byte", "int", "uint", "float32", "float64", "complex64", "complex128", "string", "bytes", "time", "slice",
		"array", "map", "struct", "back", "pointer", "interface", "error", "tensor", "sparse", "custom", "binary",
	}
	require.Len(t, names, int(kindBinary))
	for i, name := range names {
		require.Contains(t, string(page), "\n| "+strconv.Itoa(i+1)+" "+name+" |")
	}
	for name := range commonErrors() {
		require.Contains(t, string(page), "`"+name+"`")
	}
}
