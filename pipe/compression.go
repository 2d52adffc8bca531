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
// it, and in the compatible dialect; PipeStats.Compression counts these. The receiver gets the
// original bytes.
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

// MarshalText returns the name of c: none, s2 or zstd.
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

// addCompressible counts a part of n bytes for which compression c is requested; CompressionNone
// counts nothing. It returns an error if c is not known.
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

// compresses reports whether the pipe can compress: it uses the native dialect, and both ends
// support compression.
func (s *spec) compresses() bool { return s.native && s.features&wire.FeatureCompression != 0 }

// staysOnHost reports whether a tensor from source to target stays in host memory, where the host can
// decompress it. That is so if both are the CPU. It is also so if source is the CPU, target is zero,
// and no channel carries tensors from the CPU to another device. arriving is set if the peer sends the
// tensor. Both ends get the same result, since they have the same channels.
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

// cost returns the bytes that a message acquires of the budgets before it is compressed. If the
// pipe compresses, parts to be compressed count twice, since the compressed form may take as much
// memory.
func (o *nativeWriter) cost(size *messageSize) int {
	if !o.pipe.compresses {
		return size.total()
	}
	return addSizes(size.total(), int(size.compressible.Bytes))
}

// compress returns the compressed forms of the parts of m for which compression is requested. It
// returns nil without an error if there are none or the pipe does not compress. It runs on the
// goroutine of the caller of Write, before any byte is sent. If ctx, the message's deadline or the pipe
// ends first it returns an error. The caller must release the result.
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

// settleCost returns the share of the budgets that a message keeps after it is compressed, and releases
// the rest. The caller has acquired cost(size). k are the compressed forms, nil if there are none.
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

// countCompressed counts the parts of the message described in o.frame for which compression was
// requested: in o.saved those that are compressed, and in pipe.plain the others. The caller holds
// mu.
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

// formBuffer returns the compressed form of a part as a buffer for channels. The buffer keeps part
// reachable, to whose memory the form may refer.
func formBuffer(form [][]byte, part device.Buffer) device.Buffer {
	return device.Host(form...).WithOwner(part)
}

// formTail returns the last n bytes of b, the memory of a part that is not inline. A channel
// receives the part's compressed form, of n bytes, into the tail, and the form is then decompressed
// in place, so that it takes no further memory. For an uncompressed part n is b.Len().
func formTail(b device.Buffer, n uint64) device.Buffer {
	if n == uint64(b.Len()) {
		return b
	}
	return b.Slice(b.Len()-int(n), int(n))
}

// checkCodec counts a compressed part in in.compressed, or returns an error if this pipe does not
// support compression. An uncompressed part is always valid.
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

// checkTensorCodec does for a tensor what checkCodec does for any part. It also returns an error for a
// compressed tensor that might go to memory in which the host cannot decompress it.
func (in *nativeIncoming) checkTensorCodec(t *native.Tensor) error {
	if t.Codec != compress.None && !in.Incoming.pipe.staysOnHost(t.Source, t.Target, true) {
		return fmt.Errorf("it is compressed, and goes from %s to %s", t.Source, t.Target)
	}
	return in.checkCodec(t.Codec)
}

// checkMemory returns an error that matches ErrAllocation if the memory in a for a compressed
// tensor cannot be addressed by the host.
func (in *nativeIncoming) checkMemory(a Allocation) error {
	if in.compressed == 0 {
		return nil
	}
	for k := range in.parts.Tensors {
		if in.parts.Tensors[k].Codec != compress.None && !a.Tensors[k].IsHost() {
			return allocationError("tensor %d: it is compressed, and the host cannot address the memory", k)
		}
	}
	return nil
}

// decompressInline waits for the work on dst's stream and then decompresses form, an inline part, into
// dst. The error is that of awaitStream or decompressError.
func (in *nativeIncoming) decompressInline(ctx context.Context, codec compress.Codec, dst device.Buffer, form []byte) error {
	if err := awaitStream(ctx, dst); err != nil {
		return err
	}
	check := func() error { return context.Cause(ctx) }
	err := in.Incoming.pipe.context.coders.Decompress(codec, dst.AppendSegments(nil), form, check)
	runtime.KeepAlive(dst)
	return in.decompressError(err)
}

// decompressLarge decompresses, in the memory of a, the parts that are not inline and that channels
// have received in compressed form. Errors are those of decompressInPlace.
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

// decompressInPlace waits for the work on dst's stream. The last n bytes of dst hold a compressed form;
// it then decompresses this form into all of dst. The error is that of awaitStream or decompressError.
func (in *nativeIncoming) decompressInPlace(ctx context.Context, codec compress.Codec, dst device.Buffer, n uint64) error {
	if err := awaitStream(ctx, dst); err != nil {
		return err
	}
	check := func() error {
		in.Incoming.pipe.arrived(compress.BlockSize)
		return context.Cause(ctx)
	}
	err := in.Incoming.pipe.context.coders.DecompressInPlace(codec, dst.AppendSegments(nil), int(n), check)
	runtime.KeepAlive(dst)
	return in.decompressError(err)
}

// decompressError returns the error of a Read whose decompression returned err. Corrupt data fails
// the pipe, and the error matches ErrProtocol. Any other err means that the Read's ctx has ended,
// and the error matches ErrCancelled. nil stays nil.
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

// countSavings updates the reader's statistics after the message has been read: for each compressed
// part it adds the original and the compressed length.
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
