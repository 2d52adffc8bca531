package pipe

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// Compression requests that a payload or tensor be compressed for the transfer. A part is sent
// uncompressed all the same if compression does not make it smaller, if the peer does not support
// it, and in the compatible dialect; PipeStats.Compression counts the compressed parts, and those
// that are sent uncompressed all the same. The receiver gets the original bytes.
//
// The caller of Write compresses, and the caller of Read decompresses. The compressed bytes take
// memory until they have been sent, which counts as bytes in flight.
type Compression byte

const (
	// CompressionNone sends bytes as they are.
	CompressionNone = Compression(compress.None)

	// CompressionS2 is fast and suits networks of some Gbit/s. It only helps data that repeats
	// itself.
	CompressionS2 = Compression(compress.S2)

	// CompressionZstd suits slower networks. It compresses better, also weights without repetition,
	// and takes several times the CPU time.
	CompressionZstd = Compression(compress.Zstd)
)

func (c Compression) String() string { return compress.Codec(c).String() }

// MarshalText returns the name of c as new memory: none, s2 or zstd for the constants of this
// package. The error is always nil.
func (c Compression) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText sets c by its name: none, s2 or zstd. For any other text it returns an error and
// leaves c unchanged.
func (c *Compression) UnmarshalText(text []byte) error {
	for known := CompressionNone; compress.Codec(known).Known(); known++ {
		if known.String() == string(text) {
			*c = known
			return nil
		}
	}
	return fmt.Errorf("compression %q is not known: none, s2 or zstd", text)
}

// CompressionStats count payloads and tensors.
type CompressionStats struct {
	Sent, Received Savings // compressed parts

	// Plain counts the parts for which compression was requested and that were sent
	// uncompressed.
	Plain Traffic

	// Refused is the reason for which this pipe compresses nothing; it is empty if it
	// compresses on request.
	Refused string
}

// Savings count compressed parts.
type Savings struct {
	Parts     uint64
	Bytes     uint64 // uncompressed size
	WireBytes uint64 // compressed size
}

// savings holds the counters of a Savings. It can be updated concurrently.
type savings struct{ plain, wire traffic }

func (s *savings) add(plain, wire uint64) {
	s.plain.add(int(plain))
	s.wire.add(int(wire))
}

func (s *savings) snapshot() Savings {
	plain := s.plain.snapshot()
	return Savings{Parts: plain.Messages, Bytes: plain.Bytes, WireBytes: s.wire.snapshot().Bytes}
}

// addCompressible adds one part of n bytes to the parts and bytes for which the sender of a message
// has requested compression. It adds nothing if c is CompressionNone. It returns an error, and adds
// nothing, if c is not a known compression.
func (s *messageSize) addCompressible(c Compression, n int) error {
	if !compress.Codec(c).Known() {
		return fmt.Errorf("compression %d is not known", byte(c))
	}
	if c != CompressionNone {
		s.compressible.Messages++
		s.compressible.Bytes = uint64(addSizes(int(s.compressible.Bytes), n))
	}
	return nil
}

// compresses reports whether a pipe opened from s compresses on request, which is so if it uses the
// native dialect and both ends support compression.
func (s *spec) compresses() bool { return s.native && s.features&wire.FeatureCompression != 0 }

// staysOnHost reports whether a tensor from the device source to the device target stays in host
// memory at both ends, so that the host can compress and decompress it. That is so if both devices
// are the CPU. It is also so if source is the CPU, target is zero because the receiver chooses it,
// and no channel carries tensors from the CPU to another device. arriving is true if the peer sends
// the tensor, and false if this end does. Both ends get the same result, since they have the same
// channels.
func (p *Pipe) staysOnHost(source, target device.Device, arriving bool) bool {
	cpu := device.CPU()
	if source != cpu || !target.IsZero() {
		return source == cpu && target == cpu
	}
	for pair := range p.channelsByPair {
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

// compressedForms holds the compressed parts of one message: for each part its compressed form, in
// pieces, or nil if it is sent uncompressed. A nil *compressedForms stands for a message of which
// no part is to be compressed. release frees the memory.
type compressedForms struct {
	memory            *compress.Compressor
	payloads, tensors [][][]byte
}

func (k *compressedForms) payload(i int) [][]byte {
	if k == nil {
		return nil
	}
	return k.payloads[i]
}

func (k *compressedForms) tensor(i int) [][]byte {
	if k == nil {
		return nil
	}
	return k.tensors[i]
}

func (k *compressedForms) release() {
	if k != nil {
		k.memory.Release()
	}
}

func formLength(form [][]byte) (n uint64) {
	for _, p := range form {
		n += uint64(len(p))
	}
	return n
}

// cost returns the number of bytes that a message of the given size acquires of the budgets of
// bytes in flight before it is compressed. If the pipe compresses, the parts to be compressed count
// twice, since their compressed form may take as much memory again.
func (o *nativeWriter) cost(size *messageSize) int {
	if !o.pipe.compresses {
		return size.total()
	}
	return addSizes(size.total(), int(size.compressible.Bytes))
}

// compress returns the compressed forms of those parts of m for which compression is requested and
// possible. It returns nil and no error if compression is requested for no part or the pipe does
// not compress. It runs on the goroutine that called Write, before any byte is sent. It returns nil
// and an error if, before it is done, ctx ends, m's deadline passes or the pipe stops sending, or
// if the encoder fails. The forms may refer to m's memory. The caller must release the result.
func (o *nativeWriter) compress(ctx context.Context, m *Message, size *messageSize) (*compressedForms, error) {
	if !o.pipe.compresses || size.compressible.Messages == 0 {
		return nil, nil
	}
	k := &compressedForms{
		memory:   o.pipe.context.coders.NewCompressor(),
		payloads: make([][][]byte, len(m.Payloads)),
		tensors:  make([][][]byte, len(m.Tensors)),
	}
	if err := o.compressParts(ctx, m, k); err != nil {
		k.release()
		return nil, err
	}
	return k, nil
}

func (o *nativeWriter) compressParts(ctx context.Context, m *Message, k *compressedForms) (err error) {
	goOn := func() error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-o.rejected:
			return ErrClosed // send replaces it by the rejection
		default:
			return m.checkDeadline()
		}
	}
	for i := range m.Payloads {
		p := &m.Payloads[i]
		if p.Compression == CompressionNone {
			continue
		}
		if k.payloads[i], err = k.memory.Add(compress.Codec(p.Compression), [][]byte{p.Data}, goOn); err != nil {
			return err
		}
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		b := &t.Buffer
		if t.Compression == CompressionNone || !b.IsHost() || b.Stream() != nil ||
			!o.pipe.staysOnHost(b.Device(), t.TargetDevice, false) {
			continue
		}
		if k.tensors[i], err = k.memory.Add(compress.Codec(t.Compression), t.Buffer.AppendSegments(nil), goOn); err != nil {
			return err
		}
	}
	return nil
}

// settleCost is called after the compression of a message. It releases the bytes of the budgets
// that the message no longer needs, and returns the share that the message keeps. The caller must
// have acquired cost(size) bytes. k holds the compressed forms of the message; if k is nil,
// settleCost releases nothing.
func (o *nativeWriter) settleCost(size *messageSize, k *compressedForms) budgetShare {
	share := o.budget.shareOf(o.cost(size))
	if k == nil {
		return share
	}
	asked := int(size.compressible.Bytes)
	kept := o.budget.shareOf(o.cost(size) - asked + min(asked, k.memory.Bytes()))
	o.budget.releaseShare(budgetShare{share.own - kept.own, share.shared - kept.shared})
	return kept
}

// countCompressed updates the statistics for the message whose header is in o.frame and whose sizes
// are in size. It counts the parts for which compression was requested: compressed ones in o.saved,
// and the others in pipe.plain. k holds the compressed forms, and is nil if the message was not
// compressed. The caller holds mu.
func (o *nativeWriter) countCompressed(size *messageSize, k *compressedForms) {
	plain := size.compressible
	count := func(length, form uint64) {
		if form == 0 {
			return
		}
		o.saved.add(length, form)
		plain.Messages--
		plain.Bytes -= length
	}
	if k != nil {
		for i := range o.frame.Payloads {
			count(o.frame.Payloads[i].Length, o.frame.Payloads[i].CompressedLength)
		}
		for i := range o.frame.Tensors {
			count(o.frame.Tensors[i].Length, o.frame.Tensors[i].CompressedLength)
		}
	}
	o.pipe.plain.addMany(plain)
}

// formBuffer returns a host buffer whose memory is form, the compressed form of part, without a
// copy. The buffer keeps part reachable for the garbage collector, because form may refer to part's
// memory.
func formBuffer(form [][]byte, part device.Buffer) device.Buffer {
	return device.Host(form...).WithOwner(part)
}

// formTail returns the last n bytes of b, without a copy. b is the memory for a part, and n the
// length in which the part is sent. A channel receives a compressed part of n bytes into this tail,
// and the part is then decompressed in place over all of b, so that it takes no further memory. For
// an uncompressed part n is b.Len(), and the result is b.
func formTail(b device.Buffer, n uint64) device.Buffer {
	if n == uint64(b.Len()) {
		return b
	}
	return b.Slice(b.Len()-int(n), int(n))
}

// checkCodec checks the codec of an arriving part. For compress.None it returns nil. For any other
// codec it returns an error if this pipe does not support compression; otherwise it counts the part
// in in.compressed and returns nil.
func (in *nativeIncoming) checkCodec(codec compress.Codec) error {
	if codec == compress.None {
		return nil
	}
	if !in.reader.pipe.compresses {
		return errors.New("it is compressed, which this end does not support")
	}
	in.compressed++
	return nil
}

// checkTensorCodec checks the codec of the arriving tensor t. It returns nil for an uncompressed
// tensor. For a compressed one it returns an error if the pipe does not support compression, or if
// the tensor might go to memory in which the host cannot decompress it; otherwise it counts the
// tensor in in.compressed and returns nil.
func (in *nativeIncoming) checkTensorCodec(t *native.Tensor) error {
	if t.Codec != compress.None && !in.Incoming.pipe.staysOnHost(t.Source, t.Target, true) {
		return fmt.Errorf("it is compressed, and goes from %s to %s", t.Source, t.Target)
	}
	return in.checkCodec(t.Codec)
}

// decompressInline decompresses form, the compressed bytes of an inline part, into dst. It uses form
// and dst only until it returns. If form is corrupt, it fails the pipe, and the error matches
// ErrProtocol. If ctx ends during decompression, the error matches ErrCancelled.
func (in *nativeIncoming) decompressInline(ctx context.Context, codec compress.Codec, dst device.Buffer, form []byte) error {
	check := func() error { return context.Cause(ctx) }
	err := in.Incoming.pipe.context.coders.Decompress(codec, dst.AppendSegments(nil), form, check)
	runtime.KeepAlive(dst)
	return in.decompressError(err)
}

// decompressLarge decompresses, in place in the memory of a, the parts that channels or the bulk
// connection have received in compressed form. Inline parts are not touched. It stops at the first
// part that fails, with the error of decompressInPlace.
func (in *nativeIncoming) decompressLarge(ctx context.Context, a Allocation) error {
	if in.compressed == 0 {
		return nil
	}
	for k := range in.parts.Payloads {
		if p := &in.parts.Payloads[k]; !p.Inline && p.Codec != compress.None {
			if err := in.decompressInPlace(ctx, p.Codec, device.Bytes(a.Payloads[k]), p.CompressedLength); err != nil {
				return err
			}
		}
	}
	for k := range in.parts.Tensors {
		if t := &in.parts.Tensors[k]; !t.Inline && t.Codec != compress.None {
			if err := in.decompressInPlace(ctx, t.Codec, a.Tensors[k], t.CompressedLength); err != nil {
				return err
			}
		}
	}
	return nil
}

// decompressInPlace decompresses the last n bytes of dst, which hold a compressed form, into all of
// dst. While it decompresses, it raises PipeStats.Progress. If the form is corrupt, it fails the
// pipe, and the error matches ErrProtocol. If ctx ends during decompression, the error matches
// ErrCancelled.
func (in *nativeIncoming) decompressInPlace(ctx context.Context, codec compress.Codec, dst device.Buffer, n uint64) error {
	check := func() error {
		in.Incoming.pipe.arrived(compress.BlockSize)
		return context.Cause(ctx)
	}
	err := in.Incoming.pipe.context.coders.DecompressInPlace(codec, dst.AppendSegments(nil), int(n), check)
	runtime.KeepAlive(dst)
	return in.decompressError(err)
}

// decompressError turns err, the result of a decompression, into the error of the call of Read. If
// the data is corrupt it fails the pipe and returns an error that matches ErrProtocol. Any other
// error means that the Read's ctx has ended, and decompressError returns an error that matches
// ErrCancelled and err. nil stays nil.
func (in *nativeIncoming) decompressError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, compress.ErrCorrupt):
		err = protocolError("message %d: %w", in.number, err)
		in.Incoming.pipe.fail(in.errorFor(err))
		return err
	default:
		return fmt.Errorf("%w: %w", ErrCancelled, err)
	}
}

// countSavings adds the original and the compressed length of each compressed part of the message
// to the reader's statistics. It is called after the message has been read.
func (in *nativeIncoming) countSavings() {
	if in.compressed == 0 {
		return
	}
	for k := range in.parts.Payloads {
		if p := &in.parts.Payloads[k]; p.Codec != compress.None {
			in.reader.saved.add(p.Length, p.CompressedLength)
		}
	}
	for k := range in.parts.Tensors {
		if t := &in.parts.Tensors[k]; t.Codec != compress.None {
			in.reader.saved.add(t.Length, t.CompressedLength)
		}
	}
}
