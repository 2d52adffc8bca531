package bench

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Spec describes a measurement. A count of 0 omits that part.
type Spec struct {
	// Transports and Channels are the names of the entries of the Catalog to offer; none stands
	// for those of [tensorpipe.DefaultProfile]. Libtensorpipe needs exactly one of each.
	Transports []string `json:"transports,omitempty"`
	Channels   []string `json:"channels,omitempty"`

	// PeerTransport and PeerChannel, if not empty, replace Transports and Channels for
	// Libtensorpipe, whose best path may be another one.
	PeerTransport string `json:"peer_transport,omitempty"`
	PeerChannel   string `json:"peer_channel,omitempty"`

	// Lanes is the number of connections of the channel mpt_uv. 0 stands for 16, as in PyTorch.
	Lanes int `json:"lanes,omitempty"`

	// Dialect is that of pipe.Options. Libtensorpipe always uses the compatible one.
	Dialect pipe.Dialect `json:"dialect,omitempty"`

	// NoSpin disables spinning of the transports uv and shm, see WithSpin there. It does not
	// affect Libtensorpipe.
	NoSpin bool `json:"no_spin,omitempty"`

	// NoEager is that of pipe.Options. It does not affect Libtensorpipe.
	NoEager bool `json:"no_eager,omitempty"`

	// BusyPolling is the option of that name of the transports uv and shm. It does not affect
	// Libtensorpipe.
	BusyPolling bool `json:"busy_polling,omitempty"`

	// AllowAnyTracer sets that option of channel/cma in both processes.
	AllowAnyTracer bool `json:"allow_any_tracer,omitempty"`

	// Size is the size in bytes of the one tensor of a message. With 0, messages are empty: no
	// tensor, no payload, no metadata.
	Size int `json:"size"`

	// Named is set if the sender names the target device; otherwise the receiver chooses it.
	Named bool `json:"named"`

	// Device, if not zero, is the GPU with the client's tensors, and ServerDevice that with the
	// server's, which stands for Device if it is zero. Channels then are those of GPUChannels.
	Device       device.Device `json:"device,omitzero"`
	ServerDevice device.Device `json:"server_device,omitzero"`

	// Buffers is the memory of the messages; "" stands for BuffersDefault.
	Buffers string `json:"buffers"`

	// Data is the contents of the tensors; "" stands for DataPattern.
	Data string `json:"data,omitempty"`

	// Compression is requested for each tensor in both directions.
	Compression pipe.Compression `json:"compression,omitempty"`

	// Depth is the number of messages in flight one way. 0 stands for 8.
	Depth int `json:"depth"`

	RoundTrips int `json:"round_trips"` // warm, one after the other
	ColdTrips  int `json:"cold_trips"`  // each after Idle
	OneWay     int `json:"one_way"`     // messages, Depth of them in flight

	// Idle is the time without activity before a cold trip. 0 stands for 2 ms.
	Idle time.Duration `json:"idle"`

	// OneProcess puts both ends into the calling process, for channels that require it.
	OneProcess bool `json:"one_process"`
}

const (
	batchBytes    = 256 << 20 // memory of a batch, unless Depth needs more
	batchMessages = 1024
	maxBatchBytes = min(8<<30, math.MaxInt)
	maxMessages   = 10_000_000
	maxLanes      = 128
)

// DefaultTrips returns a number of round trips of messages of size bytes, from 20 to 5,000, that
// gives stable results in a short time. It is less than DefaultMessages, since one round trip of a
// large message gives as much information as many one-way messages.
func DefaultTrips(size int) int { return min(max(256<<20/max(size, 1), 20), 5000) }

// DefaultMessages returns a number of one-way messages of size bytes, from 32 to 20,000, that gives
// stable results in a short time.
func DefaultMessages(size int) int { return int(min(max(2<<30/max(int64(size), 1), 32), 20_000)) }

// withDefaults returns s with defaults for Depth, Lanes, ServerDevice, Buffers, Data and Idle where these
// are zero.
func (s Spec) withDefaults() Spec {
	s.Depth = cmp.Or(s.Depth, 8)
	s.Lanes = cmp.Or(s.Lanes, 16)
	s.ServerDevice = cmp.Or(s.ServerDevice, s.Device)
	s.Buffers = cmp.Or(s.Buffers, BuffersDefault)
	s.Data = cmp.Or(s.Data, DataPattern)
	s.Idle = cmp.Or(s.Idle, 2*time.Millisecond)
	return s
}

// Check returns an error that matches ErrSpec if s is invalid, and nil otherwise. It does not check
// the names of transports and channels.
func (s Spec) Check() error {
	s = s.withDefaults()
	for what, n := range map[string]int{"round trips": s.RoundTrips, "cold trips": s.ColdTrips, "messages one way": s.OneWay} {
		if n < 0 || n > maxMessages {
			return specErrorf("%d %s: want 0 to %d", n, what, maxMessages)
		}
	}
	switch {
	case s.RoundTrips+s.ColdTrips+s.OneWay == 0:
		return specErrorf("nothing to measure: all counts are 0")
	case s.Depth < 1 || s.Depth > batchMessages:
		return specErrorf("depth %d: want 1 to %d", s.Depth, batchMessages)
	case s.Lanes < 1 || s.Lanes > maxLanes:
		return specErrorf("%d lanes: want 1 to %d", s.Lanes, maxLanes)
	case !slices.Contains(AllBuffers(), s.Buffers):
		return specErrorf("buffers %q: want %s", s.Buffers, strings.Join(AllBuffers(), ", "))
	case !slices.Contains(AllData(), s.Data):
		return specErrorf("data %q: want %s", s.Data, strings.Join(AllData(), ", "))
	case s.Compression != pipe.CompressionNone && s.Dialect == pipe.DialectCompatible:
		return specErrorf("compression %s: the compatible dialect does not support it", s.Compression)
	case s.Idle < 0:
		return specErrorf("idle %v: want more than 0", s.Idle)
	case s.Size < 0 || s.Size > maxBatchBytes/(2*s.Depth):
		return specErrorf("size %d: with a depth of %d want 0 to %d bytes", s.Size, s.Depth, maxBatchBytes/(2*s.Depth))
	}
	return s.checkGPU()
}

// ForPeer returns a copy of s with the path that Libtensorpipe measures: PeerTransport and
// PeerChannel replace Transports and Channels where they are not empty.
func (s Spec) ForPeer() Spec {
	if s.PeerTransport != "" {
		s.Transports = []string{s.PeerTransport}
	}
	if s.PeerChannel != "" {
		s.Channels = []string{s.PeerChannel}
	}
	return s
}

// batch returns the number of messages of a batch. Each message of a batch has its own memory, and
// the bytes are compared after each batch. The number is enough to keep s.Depth messages in flight
// for a while, and at most the largest count of the spec. s must have its defaults.
func (s Spec) batch() int {
	n := max(min(batchBytes/max(s.Size, 1), batchMessages), 2*s.Depth)
	if longest := max(s.RoundTrips, s.ColdTrips, s.OneWay); longest > 0 {
		n = min(n, longest)
	}
	return n
}

// options returns the options of a pipe.Context with that name for the transports, channels and
// dialect of s. A nil from stands for the default Catalog. The error matches ErrSpec if s names an
// unknown transport or channel.
func (s Spec) options(name string, from Catalog) (pipe.Options, error) {
	p, err := from.profile(s)
	return pipe.Options{Name: name, Dialect: s.Dialect, NoEager: s.NoEager, Transports: p.Transports, Channels: p.Channels}, err
}
