package bench

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Spec says what to measure. A count of 0 leaves that part out.
type Spec struct {
	// Transports and Channels are names of entries of the Catalog to offer; none
	// stands for those of [tensorpipe.DefaultProfile]. Libtensorpipe needs
	// exactly one of each.
	Transports []string `json:"transports,omitempty"`
	Channels   []string `json:"channels,omitempty"`

	// PeerTransport and PeerChannel, where they are not empty, are what
	// Libtensorpipe uses instead of Transports and Channels: its best path need not
	// be ours.
	PeerTransport string `json:"peer_transport,omitempty"`
	PeerChannel   string `json:"peer_channel,omitempty"`

	// Lanes is the number of connections of the channel mpt_uv. 0 stands for 16,
	// which is what PyTorch has.
	Lanes int `json:"lanes,omitempty"`

	// Dialect is that of pipe.Options. Libtensorpipe has its own, which is the
	// compatible one.
	Dialect string `json:"dialect,omitempty"`

	// NoSpin makes all who wait for a message over uv or shm go to sleep at once,
	// see WithSpin there. It does not concern Libtensorpipe.
	NoSpin bool `json:"no_spin,omitempty"`

	// AllowAnyTracer is that option of channel/cma, for both processes.
	AllowAnyTracer bool `json:"allow_any_tracer,omitempty"`

	// Size is that of the one tensor of a message, in bytes. With 0, messages
	// are empty: no tensor, no payload, no metadata.
	Size int `json:"size"`

	// Named is whether the sender names the target device; otherwise the
	// receiver chooses it.
	Named bool `json:"named"`

	// Buffers is the memory of the messages, BuffersDefault if empty.
	Buffers string `json:"buffers"`

	// Data is what the tensors hold, DataPattern if empty.
	Data string `json:"data,omitempty"`

	// Compression is asked for with each tensor, both ways.
	Compression pipe.Compression `json:"compression,omitempty"`

	// Depth is the number of messages in flight one way. 0 stands for 8.
	Depth int `json:"depth"`

	RoundTrips int `json:"round_trips"` // one behind the other
	ColdTrips  int `json:"cold_trips"`  // each after Idle
	OneWay     int `json:"one_way"`     // messages, Depth of them in flight

	// Idle is how long nothing happens before a cold trip. 0 stands for 2 ms.
	Idle time.Duration `json:"idle"`

	// OneProcess puts both ends into the calling process, for channels that
	// work only there.
	OneProcess bool `json:"one_process"`
}

const (
	batchBytes    = 256 << 20 // memory of a batch, unless Depth needs more
	batchMessages = 1024
	maxBatchBytes = min(8<<30, math.MaxInt)
	maxMessages   = 10_000_000
	maxLanes      = 128
)

// DefaultTrips and DefaultMessages are numbers of round trips, and of messages one
// way, of that size that give steady figures. One round trip of a large message
// says as much as many messages one way.
func DefaultTrips(size int) int { return min(max(256<<20/max(size, 1), 20), 5000) }

// DefaultMessages is described at DefaultTrips.
func DefaultMessages(size int) int { return int(min(max(2<<30/max(int64(size), 1), 32), 20_000)) }

func (s Spec) withDefaults() Spec {
	s.Depth = cmp.Or(s.Depth, 8)
	s.Lanes = cmp.Or(s.Lanes, 16)
	s.Buffers = cmp.Or(s.Buffers, BuffersDefault)
	s.Data = cmp.Or(s.Data, DataPattern)
	s.Idle = cmp.Or(s.Idle, 2*time.Millisecond)
	return s
}

// Check returns an error that matches ErrSpec where s cannot be measured.
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
		return specErrorf("compression %s: the compatible dialect has none", s.Compression)
	case s.Idle < 0:
		return specErrorf("idle %v: want more than 0", s.Idle)
	case s.Size < 0 || s.Size > maxBatchBytes/(2*s.Depth):
		return specErrorf("size %d: with a depth of %d want 0 to %d bytes", s.Size, s.Depth, maxBatchBytes/(2*s.Depth))
	}
	return nil
}

// ForPeer is the spec as Libtensorpipe measures it.
func (s Spec) ForPeer() Spec {
	if s.PeerTransport != "" {
		s.Transports = []string{s.PeerTransport}
	}
	if s.PeerChannel != "" {
		s.Channels = []string{s.PeerChannel}
	}
	return s
}

// batch is the number of messages between two pauses for checking. Each has
// memory of its own; there are enough to keep Depth of them in flight for a
// while, and no more than are asked for.
func (s Spec) batch() int {
	n := max(min(batchBytes/max(s.Size, 1), batchMessages), 2*s.Depth)
	if longest := max(s.RoundTrips, s.ColdTrips, s.OneWay); longest > 0 {
		n = min(n, longest)
	}
	return n
}

// options are those of a context that offers what s says.
func (s Spec) options(name string, from Catalog) (pipe.Options, error) {
	p, err := from.profile(s)
	return pipe.Options{Name: name, Dialect: s.Dialect, Transports: p.Transports, Channels: p.Channels}, err
}
