package filetransfer

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

func TestCheckName(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, want := range map[string]string{
		"a.safetensors":             "",
		"a/b/c d.safetensors":       "",
		"..a/..b.safetensors":       "",
		"größe/重み.safetensors":      "",
		"":                          "is not a plain relative path",
		"/a.safetensors":            "is not a plain relative path",
		"../a.safetensors":          "is not a plain relative path",
		"a/../b.safetensors":        "is not a plain relative path",
		"a/..":                      "is not a plain relative path",
		"./a.safetensors":           "is not a plain relative path",
		"a//b.safetensors":          "is not a plain relative path",
		`..\a.safetensors`:          "has a backslash",
		`C:\a.safetensors`:          "has a backslash",
		"a\x00.safetensors":         "has control characters",
		"a\n.safetensors":           "has control characters",
		"\x1b[2Ja.safetensors":      "has control characters",
		"a\u202e.safetensors":       "has control characters",
		"a\xff.safetensors":         "is not UTF-8",
		"a":                         "does not end in NAME.safetensors",
		".safetensors":              "does not end in NAME.safetensors",
		"a/.safetensors":            "does not end in NAME.safetensors",
		"a.SafeTensors":             "does not end in NAME.safetensors",
		".a.safetensors.tpipe-part": "does not end in NAME.safetensors",
		long + "/a.safetensors":     "element of more than 255 bytes",
		long[:240] + ".safetensors": "last element of more than 243 bytes",
		strings.Repeat("a/", 32) + "a.safetensors":   "deeper than 32",
		strings.Repeat("aa/", 400) + "a.safetensors": "more than 1024 bytes",
	} {
		err := checkName(name)
		if want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.IsType(t, &NameError{}, err, name)
		require.ErrorContains(t, err, want)
		require.Equal(t, err.Error(), Printable(err.Error()), "it can be printed")
	}
}

func TestCheckNames(t *testing.T) {
	for _, c := range []struct {
		names string
		fault bool
	}{
		{"a b c/a c/b d/a", false},
		{"a a", true},
		{"a A", true},
		{"c/a C/b", true},
		{"x/c/a x/C/b", true},
		{"ä Ä", true},
	} {
		names := strings.Fields(strings.ReplaceAll(c.names+" ", " ", Suffix+" "))
		require.Equal(t, c.fault, checkNames(names) != nil, c.names)
	}
	require.ErrorContains(t, checkNames([]string{"x.safetensors", "x.safetensors/a.safetensors"}), "lies below another file")
	require.ErrorContains(t, checkNames([]string{"X.safetensors/a.safetensors", "x.safetensors"}), "by case only")
}

func TestCombineSums(t *testing.T) {
	numbers := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		data := make([]byte, numbers.IntN(5000))
		for i := range data {
			data[i] = byte(numbers.Uint32())
		}
		cut := numbers.IntN(len(data) + 1)
		require.Equal(t, sumOf(data), combineSums(sumOf(data[:cut]), sumOf(data[cut:]), len(data)-cut))
	}
	require.Equal(t, uint32(0xe3069283), sumOf([]byte("123456789")), "the check value of CRC32C")
}

// TestBuffers checks that no more buffers are in use than fit into the memory, that a blocked call
// of acquire gets the next buffer that is released, and that acquire returns the cause of a context
// that has ended.
func TestBuffers(t *testing.T) {
	b := newBuffers(2*chunkBytes + 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	first, err := b.acquire(ctx)
	require.NoError(t, err)
	require.Len(t, first, chunkBytes)
	_, err = b.acquire(ctx)
	require.NoError(t, err)
	third := testwait.Start(func() []byte {
		buf, _ := b.acquire(ctx)
		return buf
	})
	b.release(first)
	require.Same(t, &first[0], &testwait.Finish(t, third)[0])
	cancel(errEvening)
	_, err = b.acquire(ctx)
	require.ErrorIs(t, err, errEvening)
	require.Equal(t, 1, cap(newBuffers(1).slots))
	require.Equal(t, defaultMemory/chunkBytes, cap(newBuffers(0).slots))
}

func TestPrintable(t *testing.T) {
	require.Equal(t, "wörld 1", Printable("wörld 1"))
	require.Equal(t, `"a\nb"`, Printable("a\nb"))
	require.Equal(t, `"\x1b[2J"`, Printable("\x1b[2J"))
	require.Equal(t, `"\xff"`, Printable("\xff"))
}
