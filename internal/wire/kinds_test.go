package wire

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/nop"
	"github.com/tensorpipe-go/tensorpipe/internal/wire/capture"
)

type encodable interface{ Append([]byte) []byte }

// kinds lists all messages with a common signature, each with example frames.
var kinds = map[string]struct {
	decode  func(p []byte, limits Limits) (encodable, error)
	example encodable
}{
	"Packet":          {decodeAs(DecodePacket), SpontaneousConnection{ContextName: "client"}},
	"Brochure":        {decodeAs(DecodeBrochure), someBrochure()},
	"BrochureAnswer":  {decodeAs(DecodeBrochureAnswer), someAnswer()},
	"Descriptor":      {decodeInto(DecodeDescriptor), ordinary()},
	"DescriptorReply": {decodeInto(DecodeDescriptorReply), &DescriptorReply{devices("cpu", "cuda", "npu")}},
	"CMADescriptor":   {decodeAs(DecodeCMADescriptor), CMADescriptor{PID: 1 << 20, Ptr: 1 << 46}},
	"XTHDescriptor":   {decodeAs(DecodeXTHDescriptor), XTHDescriptor{Ptr: 1 << 46}},
	"CUDAIPCDescriptor": {decodeAs(DecodeCUDAIPCDescriptor), CUDAIPCDescriptor{Device: 1, Slot: 3, Outbox: &CUDAIPCOutbox{
		Process: "4_effffffc_100", Memory: [64]byte{1}, Events: [][64]byte{{2}, {3}, {4}, {5}},
	}}},
	"MPTHello": {decodeAs(DecodeMPTHello), MPTServerHello{[]MPTLane{{"10.0.0.1:80", 300}, {"10.0.0.1:81", 301}}}},
}

func decodeAs[M encodable](decode func([]byte, Limits) (M, error)) func([]byte, Limits) (encodable, error) {
	return func(p []byte, limits Limits) (encodable, error) {
		m, err := decode(p, limits)
		if err != nil {
			return nil, err
		}
		return m, nil
	}
}

// reusable is the constraint of pointers to messages whose decoder reuses their memory.
type reusable[M any] interface {
	*M
	encodable
}

func decodeInto[M any, P reusable[M]](decode func([]byte, Limits, *M) error) func([]byte, Limits) (encodable, error) {
	return func(p []byte, limits Limits) (encodable, error) {
		m := new(M)
		if err := decode(p, limits, m); err != nil {
			return nil, err
		}
		return P(m), nil
	}
}

// capturedFrames returns the frames of all recordings in testdata, each distinct frame once.
func capturedFrames(t testing.TB) (frames [][]byte) {
	paths, err := filepath.Glob("testdata/*.json")
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, path := range paths {
		c, err := capture.Load(path)
		require.NoError(t, err)
		for _, e := range c.Events {
			if !seen[string(e.Frame)] {
				seen[string(e.Frame)] = true
				frames = append(frames, e.Frame)
			}
		}
	}
	return frames
}

func TestExamplesRoundTrip(t *testing.T) {
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			prefix := []byte("kept")
			p := k.example.Append(prefix)
			require.Equal(t, "kept", string(p[:4]))
			got, err := k.decode(p[4:], Limits{})
			require.NoError(t, err)
			require.Equal(t, k.example, got)
			require.Equal(t, p[4:], got.Append(nil), "the encoding is stable")
		})
	}
}

func TestEveryCutIsAnError(t *testing.T) {
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			p := k.example.Append(nil)
			for n := range p {
				_, err := k.decode(p[:n], Limits{})
				requireMalformed(t, err, name)
			}
			_, err := k.decode(append(p, 0), Limits{})
			requireMalformed(t, err, name)
			require.ErrorContains(t, err, "1 bytes too many")
		})
	}
}

func requireMalformed(t *testing.T, err error, message string) {
	t.Helper()
	var outer *Error
	require.ErrorAs(t, err, &outer)
	require.Equal(t, message, outer.Message)
	var inner *nop.Error
	require.ErrorAs(t, err, &inner)
	require.NotErrorIs(t, err, ErrLimit)
}

// TestMemberCountsAreExact checks that decoding rejects each kind of message if the outermost
// structure has one member more or less than it should.
func TestMemberCountsAreExact(t *testing.T) {
	for name, k := range kinds {
		p := k.example.Append(nil)
		head := 1 // size of a structure's header; a variant has one at 3
		if p[0] == 0xb8 {
			head = 3
		}
		for _, d := range []int{-1, +1} {
			changed := append([]byte(nil), p...)
			changed[head] += byte(d)
			_, err := k.decode(changed, Limits{})
			requireMalformed(t, err, name)
			require.ErrorContains(t, err, "want a structure of")
		}
	}
}

func TestFramesOfOtherKindsAreErrors(t *testing.T) {
	for name, k := range kinds {
		for other, o := range kinds {
			if name != other && name+other != "PacketMPTHello" && name+other != "MPTHelloPacket" {
				_, err := k.decode(o.example.Append(nil), Limits{})
				requireMalformed(t, err, name)
			}
		}
	}
}

func TestFrameLimit(t *testing.T) {
	for name, k := range kinds {
		p := k.example.Append(nil)
		_, err := k.decode(p, Limits{Frame: int64(len(p))})
		require.NoError(t, err, name)
		_, err = k.decode(p, Limits{Frame: int64(len(p)) - 1})
		require.ErrorIs(t, err, ErrLimit, name)
	}
}

// TestSmallestElements checks that decoding rejects an array or a map if the remaining bytes cannot
// contain the announced number of elements of the minimum size. It accepts one whose elements all
// have just that size.
func TestSmallestElements(t *testing.T) {
	const n, anyDevice = 100, "b902bd017800"
	for _, c := range []struct{ kind, head, element, tail string }{
		{"Brochure", "b902bb", "bd00bd00", "bb00"},
		{"Brochure", "b902bb00bb", "bd00bb00", ""},
		{"Brochure", "b902bb00bb01bd00bb", anyDevice + "bd00", ""},
		{"BrochureAnswer", "b907bd00bd00bb", "0000", "bd00bb00bb00bb00"},
		{"BrochureAnswer", "b907bd00bd00bb00bd00bb", "bd00bc00", "bb00bb00"},
		{"BrochureAnswer", "b907bd00bd00bb00bd00bb00bb00bb", "ba02" + anyDevice + anyDevice + "bd00", ""},
		{"Descriptor", "b903bd00ba", "b90200bd00", "ba00"},
		{"Descriptor", "b903bd00ba00ba", "b90400" + anyDevice + "bebd00", ""},
		{"DescriptorReply", "b901ba", anyDevice, ""},
		{"MPTHello", "b800b901ba", "b902bd0000", ""},
	} {
		body := unhex(t, strings.Repeat(c.element, n)+c.tail)
		frame := append(nop.AppendUint(unhex(t, c.head), n), body...)
		_, err := kinds[c.kind].decode(frame, Limits{})
		require.NoError(t, err, c.element)

		frame = append(nop.AppendUint(unhex(t, c.head), n+1), body...)
		_, err = kinds[c.kind].decode(frame, Limits{})
		requireMalformed(t, err, c.kind)
	}
}
