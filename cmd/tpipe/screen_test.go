package main

import (
	"bytes"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBar(t *testing.T) {
	for _, c := range []struct {
		moved, total int
		took         time.Duration
		want         string
	}{
		{0, 4 << 20, 0, "[                        ]   0%  0 B of 4 MiB  -"},
		{1 << 20, 4 << 20, 2 * time.Second, "[======                  ]  25%  1 MiB of 4 MiB  524 kB/s  6s left"},
		{4 << 20, 4 << 20, 2 * time.Second, "[========================] 100%  4 MiB of 4 MiB  2.1 MB/s  0s left"},
		{0, 0, time.Second, "[                        ]   0%  0 B of 0 B  -"},
	} {
		require.Equal(t, c.want, bar(c.moved, c.total, c.took))
	}
	require.Less(t, len(bar(999_999_999_999, 1<<40, 100*time.Hour)), 80)
}

// TestScreen checks that lines replace the progress bar, that the next advance draws it again, and
// that it is erased when a transfer is removed. Without a bar only lines are printed.
func TestScreen(t *testing.T) {
	var terminal bytes.Buffer
	s := &screen{out: &terminal, err: &terminal, bar: true}
	s.print("head\n")
	s.addTotal(100)
	s.advance(50)
	s.print("a file\n")
	s.warn("oh")
	s.advance(25)
	s.remove(100, 75)
	s.print("end\n")
	const wipe = "\r\x1b[K"
	parts := strings.Split(terminal.String(), wipe)
	require.Len(t, parts, 5, "%q", parts)
	require.Equal(t, "head\n", parts[0])
	require.Contains(t, parts[1], " 50%")
	require.Equal(t, "a file\noh\n", parts[2])
	require.Contains(t, parts[3], " 75%")
	require.Equal(t, "end\n", parts[4])
	require.Zero(t, s.total+s.moved)

	terminal.Reset()
	plain := &screen{out: &terminal, err: &terminal}
	plain.addTotal(100)
	plain.advance(50)
	plain.print("a file\n")
	plain.remove(100, 50)
	require.Equal(t, "a file\n", terminal.String())
}

func TestQuiet(t *testing.T) {
	recv, address := startRecv(t, t.TempDir(), "-quiet", "-once")
	stdout, stderr, code := tpipe(t, "send", "-quiet", "-to", address, "testdata")
	require.Zero(t, code, stderr)
	require.Empty(t, stdout+stderr)
	stdout, stderr, code = recv.wait()
	require.Zero(t, code, stderr)
	require.Empty(t, stdout+stderr)
}

// TestParse checks that flags are recognized before, between and after operands, and not after --.
func TestParse(t *testing.T) {
	for line, want := range map[string]struct{ x, operands string }{
		"":              {"", ""},
		"a b":           {"", "a b"},
		"-x 1 a b":      {"1", "a b"},
		"a -x 1 b":      {"1", "a b"},
		"a b -x 1":      {"1", "a b"},
		"a b -x=1":      {"1", "a b"},
		"a -- -x 1":     {"", "a -x 1"},
		"-x 1 -- -y":    {"1", "-y"},
		"a - b":         {"", "a - b"},
		"-x 1 -x 2 -- ": {"2", ""},
	} {
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		x := fs.String("x", "", "")
		operands, err := parse(fs, strings.Fields(line))
		require.NoError(t, err, line)
		require.Equal(t, want.x, *x, line)
		require.Equal(t, want.operands, strings.Join(operands, " "), line)
	}
}
