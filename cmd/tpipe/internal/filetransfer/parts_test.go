package filetransfer

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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

func TestFileSum(t *testing.T) {
	numbers := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		data := make([]byte, numbers.IntN(5000))
		for i := range data {
			data[i] = byte(numbers.Uint32())
		}
		cut := func(from int) int { return from + numbers.IntN(len(data)-from+1) }
		a := cut(0)
		b := cut(a)
		s := newFileSum(data[:a], 3)
		s.set(1, sumOf(data[b:b]), 0)
		s.set(2, sumOf(data[b:]), len(data)-b)
		s.set(0, sumOf(data[a:b]), b-a)
		require.Equal(t, sumOf(data), s.total())
	}
	require.Equal(t, uint32(0xe3069283), sumOf([]byte("123456789")), "the check value of CRC32C")
}

func TestWindow(t *testing.T) {
	w := newWindow()
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, w.enter(ctx, 10*windowBytes), "alone")
	require.False(t, w.tryEnter(0))
	w.leave(10 * windowBytes)
	for range windowSlots {
		require.True(t, w.tryEnter(1))
	}
	require.False(t, w.tryEnter(0))
	entered := make(chan error, 1)
	go func() { entered <- w.enter(ctx, windowBytes-windowSlots+1) }()
	w.leave(1)
	require.NoError(t, <-entered)
	require.False(t, w.tryEnter(0))
	cancel()
	require.ErrorIs(t, w.enter(ctx, 1), context.Canceled)
}

func TestPrintable(t *testing.T) {
	require.Equal(t, "wörld 1", Printable("wörld 1"))
	require.Equal(t, `"a\nb"`, Printable("a\nb"))
	require.Equal(t, `"\x1b[2J"`, Printable("\x1b[2J"))
	require.Equal(t, `"\xff"`, Printable("\xff"))
}
