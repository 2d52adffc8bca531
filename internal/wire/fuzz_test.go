package wire

import (
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

func FuzzDecodePacket(f *testing.F)          { fuzzDecode(f, "Packet") }
func FuzzDecodeBrochure(f *testing.F)        { fuzzDecode(f, "Brochure") }
func FuzzDecodeBrochureAnswer(f *testing.F)  { fuzzDecode(f, "BrochureAnswer") }
func FuzzDecodeDescriptor(f *testing.F)      { fuzzDecode(f, "Descriptor") }
func FuzzDecodeDescriptorReply(f *testing.F) { fuzzDecode(f, "DescriptorReply") }
func FuzzDecodeCMADescriptor(f *testing.F)   { fuzzDecode(f, "CMADescriptor") }
func FuzzDecodeXTHDescriptor(f *testing.F)   { fuzzDecode(f, "XTHDescriptor") }
func FuzzDecodeMPTHello(f *testing.F)        { fuzzDecode(f, "MPTHello") }

func FuzzDecodeCUDAIPCDescriptor(f *testing.F) { fuzzDecode(f, "CUDAIPCDescriptor") }

const (
	// costPerByte bounds the allocation per byte of input. The worst case, maps within maps of one
	// entry each, is 37.
	costPerByte = 48

	// costPerMessage covers the message itself, an error, and other allocations of the process.
	costPerMessage = 16 << 10
)

// fuzzDecode decodes arbitrary bytes as a message of this kind. Decoding must not panic, must
// allocate in proportion to the input, and must return an *Error or a message that equals the
// result of encoding and decoding it again.
func fuzzDecode(f *testing.F, kind string) {
	k := kinds[kind]
	f.Add(k.example.Append(nil))
	for _, frame := range capturedFrames(f) {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := costing(t, p, k.decode)
		if err != nil {
			var typed *Error
			require.ErrorAs(t, err, &typed)
			require.Equal(t, kind, typed.Message)
			return
		}
		shortest := m.Append(nil)
		require.LessOrEqual(t, len(shortest), len(p))
		again, err := k.decode(shortest, Limits{})
		require.NoError(t, err, dump(shortest))
		require.Equal(t, m, again)
		require.Equal(t, shortest, again.Append(nil))
	})
}

// costing calls decode with p and the default limits and returns its results. It fails the test if
// decode allocates more than costPerByte for each byte of p and a constant.
func costing(t *testing.T, p []byte, decode func([]byte, Limits) (encodable, error)) (encodable, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, err := decode(p, Limits{})
	runtime.ReadMemStats(&after)
	cost := int(after.TotalAlloc - before.TotalAlloc)
	require.LessOrEqual(t, cost, costPerByte*len(p)+costPerMessage, "for %d bytes", len(p))
	return m, err
}

// FuzzReuse decodes two frames, one after the other, into one Descriptor. The result must equal
// that of decoding the second frame into a new one, and dropped elements must be zero.
func FuzzReuse(f *testing.F) {
	first := ordinary().Append(nil)
	for _, frame := range capturedFrames(f) {
		f.Add(first, frame)
		f.Add(frame, first)
	}
	f.Fuzz(func(t *testing.T, p, q []byte) {
		var reused, fresh Descriptor
		_ = DecodeDescriptor(p, Limits{}, &reused) // whatever p is, q must be decoded correctly
		err := DecodeDescriptor(q, Limits{}, &reused)
		require.Equal(t, DecodeDescriptor(q, Limits{}, &fresh), err)
		if err == nil {
			require.Equal(t, fresh.Append(nil), reused.Append(nil))
		}
		for _, gone := range reused.Tensors[len(reused.Tensors):cap(reused.Tensors)] {
			require.Zero(t, gone)
		}
	})
}

// TestDecodingCostsInProportion checks that decoding allocates in proportion to the size of the
// frame, also for large frames that are as expensive to decode as possible.
func TestDecodingCostsInProportion(t *testing.T) {
	nested := &Brochure{ChannelDeviceDescriptors: map[string]map[device.Device]string{}}
	ids := &BrochureAnswer{ChannelRegistrationIDs: map[string][]uint64{}, TransportRegistrationIDs: map[uint64]uint64{}}
	pairs := &BrochureAnswer{ChannelForDevicePair: map[DevicePair]string{}}
	for i := range 4096 {
		name := string([]byte{byte(i), byte(i >> 8)})
		nested.ChannelDeviceDescriptors[name] = map[device.Device]string{{Kind: "x"}: ""}
		ids.ChannelRegistrationIDs[name] = []uint64{1}
		ids.TransportRegistrationIDs[uint64(i)] = 0
		pairs.ChannelForDevicePair[DevicePair{device.Device{Kind: "x", Index: i}, device.Device{Kind: "y"}}] = ""
	}
	tensors := &Descriptor{Tensors: make([]TensorDescriptor, 1<<16)}
	for i := range tensors.Tensors {
		tensors.Tensors[i].SourceDevice.Kind = "x"
	}
	for _, c := range []struct {
		kind    string
		message encodable
	}{
		{"Brochure", nested},
		{"BrochureAnswer", ids},
		{"BrochureAnswer", pairs},
		{"Descriptor", &Descriptor{Payloads: make([]PayloadDescriptor, 1<<16)}},
		{"Descriptor", tensors},
		{"DescriptorReply", &DescriptorReply{slices.Repeat(devices("x"), 1<<16)}},
		{"MPTHello", MPTServerHello{make([]MPTLane, 4096)}},
	} {
		p := c.message.Append(nil)
		_, err := costing(t, p, kinds[c.kind].decode)
		require.NoError(t, err)
		_, err = costing(t, p[:len(p)-1], kinds[c.kind].decode)
		require.Error(t, err)
	}
}
