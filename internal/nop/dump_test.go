package nop

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDump(t *testing.T) {
	cases := []struct{ name, bytes, want string }{
		{"descriptor", "b9 03 bd 05 6d 65 74 61 31 ba 00 ba 01 b9 04 80 c8 b9 02 bd 03 63 70 75 00 be bd 02 74 6d", `
0000  b9 03                                             structure of 3
0002    bd 05 6d 65 74 61 31                            "meta1"
0009    ba 00                                           array of 0
000b    ba 01                                           array of 1
000d      b9 04                                         structure of 4
000f        80 c8                                       200
0011        b9 02                                       structure of 2
0013          bd 03 63 70 75                            "cpu"
0018          00                                        0
0019        be                                          empty
001a        bd 02 74 6d                                 "tm"
`},
		{"every kind", "b8 01 bb 01 ba 02 84 80 ff bc 10 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00", `
0000  b8 01                                             variant, alternative 1
0002    bb 01                                           map of 1
0004      ba 02                                         pair or array of 2
0006        84 80                                       -128
0008        ff                                          -1
0009      bc 10 01 00 00 00 00 00 00 00 02 00           64-bit integers [1 2]
0015      00 00 00 00 00 00
`},
		{"cut", "b9 02 05", `
0000  b9 02 05                                          nop: byte 1: count of 2 parts, the bytes left hold at most 1
`},
		{"cut behind a good part", "ba 01 b9 01 81 05", `
0000  ba 01                                             array of 1
0002    b9 01                                           structure of 1
0004  81 05                                             nop: byte 5: want 2 bytes, 1 left
`},
		{"unknown prefix", "88 00", `
0000  88 00                                             nop: byte 0: unknown prefix 88
`},
		{"two values", "01 02", `
0000  01                                                1
0001  02                                                2
`},
		{"missing value", "b8 00", `
0000  b8 00                                             variant, alternative 0
0002                                                    nop: byte 2: want a value, nothing left
`},
		{"nothing", "", "\n"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			require.NoError(t, Dump(&out, unhex(t, c.bytes)))
			require.Equal(t, c.want, "\n"+out.String())
		})
	}
}

func TestDumpBoundsItsDepth(t *testing.T) {
	var out strings.Builder
	require.NoError(t, Dump(&out, []byte(strings.Repeat("\xb8\x00", 1<<20))))
	require.Contains(t, out.String(), "nested deeper than 32")
}

type failingWriter struct{}

var errDisk = errors.New("disk full")

func (failingWriter) Write([]byte) (int, error) { return 0, errDisk }

func TestDumpReturnsTheWritersError(t *testing.T) {
	require.ErrorIs(t, Dump(failingWriter{}, []byte{1}), errDisk)
}
