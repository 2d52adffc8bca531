package frame_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestSize(t *testing.T) {
	require.Zero(t, frame.Size(nil))
	require.EqualValues(t, 5, frame.Size([][]byte{{1, 2}, nil, {3, 4, 5}}))
}

func TestHeader(t *testing.T) {
	require.Equal(t, []byte{9, 0x0f, 0x02, 0, 0, 0, 0, 0, 0}, frame.AppendHeader([]byte{9}, 0x020f))
	require.Len(t, frame.AppendHeader(nil, 0), frame.HeaderSize)
}

func TestReadsWhatWasFramed(t *testing.T) {
	var wire []byte
	bodies := []string{"", "x", "hello", "", strings.Repeat("long ", 1000)}
	for _, b := range bodies {
		wire = append(frame.AppendHeader(wire, int64(len(b))), b...)
	}
	for name, src := range map[string]io.Reader{
		"at once":               bytes.NewReader(wire),
		"in drops":              iotest.OneByteReader(bytes.NewReader(wire)),
		"data and end together": iotest.DataErrReader(bytes.NewReader(wire)),
	} {
		t.Run(name, func(t *testing.T) {
			r := frame.NewReader(src)
			for _, want := range bodies {
				n, err := r.Next()
				require.NoError(t, err)
				require.EqualValues(t, len(want), n)
				got := make([]byte, n)
				require.NoError(t, r.Body(got[:n/2], nil, got[n/2:]))
				require.Equal(t, want, string(got))
			}
			for range 2 {
				_, err := r.Next()
				require.Equal(t, io.EOF, err)
			}
		})
	}
}

func TestEndsWithinAHeaderStay(t *testing.T) {
	header := frame.AppendHeader(nil, 3)
	for cut := 1; cut < len(header); cut++ {
		r := frame.NewReader(bytes.NewReader(header[:cut]))
		for range 2 {
			_, err := r.Next()
			require.Equal(t, io.ErrUnexpectedEOF, err)
		}
	}
}

func TestEndsWithinABodyStay(t *testing.T) {
	wire := append(frame.AppendHeader(nil, 3), "abc"...)
	for came := range 3 {
		r := frame.NewReader(bytes.NewReader(wire[:frame.HeaderSize+came]))
		_, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, io.ErrUnexpectedEOF, r.Body(make([]byte, came+1)))
		require.ErrorIs(t, r.Body(make([]byte, 4)), frame.ErrBad)
		require.Equal(t, io.ErrUnexpectedEOF, r.Body(make([]byte, 1)))
	}
}

func TestOutOfOrder(t *testing.T) {
	r := frame.NewReader(bytes.NewReader(append(frame.AppendHeader(nil, 3), "abc"...)))
	require.ErrorIs(t, r.Body(make([]byte, 1)), frame.ErrBad)
	require.NoError(t, r.Body())
	_, err := r.Next()
	require.NoError(t, err)
	_, err = r.Next()
	require.ErrorIs(t, err, frame.ErrBad)
	got := make([]byte, 4)
	require.ErrorIs(t, r.Body(got), frame.ErrBad)
	require.Equal(t, make([]byte, 4), got)
	require.NoError(t, r.Body(got[:3]))
	require.Equal(t, "abc", string(got[:3]))
}

func TestLengths(t *testing.T) {
	for _, tc := range []struct {
		header []byte
		size   int64
		bad    bool
	}{
		{[]byte{0, 0, 0, 0, 0, 0, 0, 0}, 0, false},
		{[]byte{0, 0, 0, 0, 0, 0, 0, 0x40}, 1 << 62, false},
		{[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, math.MaxInt64, false},
		{[]byte{0, 0, 0, 0, 0, 0, 0, 0x80}, 0, true},
		{bytes.Repeat([]byte{0xff}, 8), 0, true},
	} {
		r := frame.NewReader(bytes.NewReader(tc.header))
		for range 2 {
			n, err := r.Next()
			require.Equal(t, tc.size, n)
			if !tc.bad {
				require.NoError(t, err)
				break
			}
			require.ErrorIs(t, err, frame.ErrBad, "and it stays so")
		}
	}
}

func TestErrorsOfTheSourceComeBack(t *testing.T) {
	broken := errors.New("broken")
	header := bytes.NewReader(frame.AppendHeader(nil, 3))
	r := frame.NewReader(io.MultiReader(header, iotest.ErrReader(broken)))
	_, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, broken, r.Body(make([]byte, 3)))

	_, err = frame.NewReader(iotest.ErrReader(broken)).Next()
	require.Equal(t, broken, err)
}

// FuzzReader reads frames from arbitrary bytes: nothing panics, and the frames that are read are
// together no longer than the input.
func FuzzReader(f *testing.F) {
	f.Add(append(frame.AppendHeader(nil, 3), "abc"...))
	f.Add(bytes.Repeat([]byte{0xff}, 9))
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := frame.NewReader(bytes.NewReader(wire))
		total := 0
		for {
			n, err := r.Next()
			if err != nil {
				break
			}
			dst := make([]byte, min(n, int64(len(wire))))
			if r.Body(dst) != nil || int64(len(dst)) < n {
				break
			}
			total += frame.HeaderSize + int(n)
		}
		require.LessOrEqual(t, total, len(wire))
	})
}
