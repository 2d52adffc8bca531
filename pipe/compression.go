package pipe

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// Compression asks that a payload or tensor travels compressed. It is a request:
// a part that gains nothing travels as it is, as does any part to a peer that
// does not know compression, or in the compatible dialect; PipeStats.Compression
// says so. The receiver gets the bytes that were sent, and sees no difference.
//
// The caller of Write compresses, and the caller of Read decompresses. The first
// takes memory for what has been compressed until the part has left, which
// counts among the bytes in flight.
type Compression byte

const (
	// CompressionNone sends bytes as they are.
	CompressionNone = Compression(compress.None)

	// CompressionS2 is for networks of some Gbit/s: fast, and of use for what
	// repeats itself.
	CompressionS2 = Compression(compress.S2)

	// CompressionZstd is for slower networks: it gains more, also on weights
	// that repeat nothing, and takes several times the CPU.
	CompressionZstd = Compression(compress.Zstd)
)

func (c Compression) String() string { return compress.Codec(c).String() }

// MarshalText returns the name of c: none, s2 or zstd.
func (c Compression) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText takes a name of MarshalText.
func (c *Compression) UnmarshalText(text []byte) error {
	for known := CompressionNone; compress.Codec(known).Known(); known++ {
		if known.String() == string(text) {
			*c = known
			return nil
		}
	}
	return fmt.Errorf("compression %q is not known: none, s2 or zstd", text)
}

// CompressionStats count parts of messages, which are payloads and tensors.
type CompressionStats struct {
	Sent, Received Savings // parts that travelled compressed

	// Plain counts the parts that were to be compressed and were sent as they
	// are: they gained nothing, or it could not be had.
	Plain Traffic

	// Refused says why no part of this pipe is compressed; it is empty where
	// parts are, if they are to be.
	Refused string
}

// Savings are parts that travelled compressed.
type Savings struct {
	Parts     uint64
	Bytes     uint64 // of the parts
	WireBytes uint64 // that travelled instead
}

// savings are Savings under way.
type savings struct{ plain, wire traffic }

func (s *savings) add(plain, wire uint64) {
	s.plain.add(int(plain))
	s.wire.add(int(wire))
}

func (s *savings) snapshot() Savings {
	plain := s.plain.snapshot()
	return Savings{Parts: plain.Messages, Bytes: plain.Bytes, WireBytes: s.wire.snapshot().Bytes}
}

// ask notes that a part of n bytes is to be compressed.
func (s *sizer) ask(c Compression, n int) error {
	if !compress.Codec(c).Known() {
		return fmt.Errorf("compression %d is not known", byte(c))
	}
	if c != CompressionNone {
		s.asked.Messages++
		s.asked.Bytes = uint64(addSizes(int(s.asked.Bytes), n))
	}
	return nil
}

// compresses reports whether both ends know how to.
func (s *spec) compresses() bool { return s.native && s.features&wire.FeatureCompression != 0 }

// staysOnHost reports whether a tensor is on the host and can go nowhere else:
// only then may it be compressed, since the host is who decompresses. Both ends
// decide alike, for they have the same channels.
func (p *Pipe) staysOnHost(source, target device.Device, arriving bool) bool {
	cpu := device.CPU()
	if source != cpu || !target.IsZero() {
		return source == cpu && target == cpu
	}
	for pair := range p.lanes {
		from, to := pair.local, pair.remote
		if arriving {
			from, to = to, from
		}
		if from == cpu && to != cpu {
			return false
		}
	}
	return true
}
