package interop

import (
	"encoding/binary"
	"hash/fnv"
	"strconv"
)

// Shape describes the messages to generate. The zero Shape is that of tppeer without flags, except
// for the seed: all sizes and numbers are random.
type Shape struct {
	Seed uint64 // tppeer uses 1 if it has no flag

	// Numbers of parts in each message, or nil for random ones.
	Payloads, Tensors *int

	// Sizes of the parts in bytes, or nil for random ones. All parts of a message have the
	// same size; successive messages have the successive sizes, cyclically.
	Sizes []int

	Targets Targets
}

// Targets selects the tensors that name cpu:0 as their target device.
type Targets int

// The values of tppeer's flag --targets.
const (
	TargetsMixed Targets = iota
	TargetsAll
	TargetsNone
)

// Message is a generated message.
type Message struct {
	Metadata []byte
	Payloads []Part
	Tensors  []Part
}

// Part is a payload or a tensor.
type Part struct {
	Metadata []byte
	Data     []byte
	Targeted bool // a tensor that names cpu:0 as its target
}

// Generate returns the message with the given index, counted from 0, of the sequence that tppeer
// sends when its flags match shape. The message depends on shape and index only, and its memory is
// new.
func Generate(shape Shape, index int) Message {
	r := random(shape.Seed*1000003 + uint64(index))
	var size *int
	if n := len(shape.Sizes); n > 0 {
		size = &shape.Sizes[index%n]
	}
	m := Message{Metadata: r.text()}
	m.Payloads = r.parts(shape.Payloads, size)
	m.Tensors = r.parts(shape.Tensors, size)
	for i := range m.Tensors {
		odd := r.next()&1 == 1
		m.Tensors[i].Targeted = shape.Targets == TargetsAll || shape.Targets == TargetsMixed && odd
	}
	return m
}

// Report is what tppeer prints about a message that it has received as a sink, as JSON.
type Report struct {
	Metadata Digest       `json:"metadata"`
	Payloads []PartReport `json:"payloads"`
	Tensors  []PartReport `json:"tensors"`
}

// PartReport is the part of a Report about one payload or tensor.
type PartReport struct {
	Digest
	Metadata Digest `json:"metadata"`
	Targeted bool   `json:"targeted"`
}

// Digest is the length and the 64-bit FNV-1a hash of some bytes.
type Digest struct {
	Length int    `json:"length"`
	FNV1a  string `json:"fnv1a"` // 16 hexadecimal digits
}

// DigestOf returns the length of p and its 64-bit FNV-1a hash, in 16 hexadecimal digits.
func DigestOf(p []byte) Digest {
	h := fnv.New64a()
	h.Write(p)
	sum := strconv.FormatUint(h.Sum64(), 16)
	const zeros = "0000000000000000"
	return Digest{Length: len(p), FNV1a: zeros[len(sum):] + sum}
}

// Report returns the description of m that tppeer prints when it has received m: lengths and hashes
// of its parts, instead of their bytes.
func (m Message) Report() Report {
	return Report{Metadata: DigestOf(m.Metadata), Payloads: reports(m.Payloads), Tensors: reports(m.Tensors)}
}

func reports(parts []Part) []PartReport {
	out := make([]PartReport, len(parts))
	for i, p := range parts {
		out[i] = PartReport{Digest: DigestOf(p.Data), Metadata: DigestOf(p.Metadata), Targeted: p.Targeted}
	}
	return out
}

// random is the state of a SplitMix64 generator, as in peer/random.cc.
type random uint64

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

func (r *random) parts(count, size *int) []Part {
	parts := make([]Part, or(count, int(r.next()%5)))
	for i := range parts {
		parts[i].Metadata = r.text()
		parts[i].Data = r.bytes(or(size, r.size()))
	}
	return parts
}

// or returns *fixed if fixed is not nil, and otherwise drawn, a random number. Callers draw the
// number in both cases, so that fixing one number of a message does not change the others.
func or(fixed *int, drawn int) int {
	if fixed != nil {
		return *fixed
	}
	return drawn
}

func (r *random) text() []byte { return r.bytes(int(r.next() % 32)) }

func (r *random) size() int {
	drawn := r.next() % 16
	if drawn == 15 {
		return 1<<20 + int(r.next()%(3<<20))
	}
	return [...]int{0, 1, 8, 4096, 65536}[drawn/3]
}

func (r *random) bytes(n int) []byte {
	out := make([]byte, n, n+8)
	for at := 0; at < n; at += 8 {
		binary.LittleEndian.PutUint64(out[at:at+8], r.next())
	}
	return out
}
