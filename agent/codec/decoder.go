package codec

import (
	"encoding/binary"
	"math"
	"reflect"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Decoder decodes one message after the other. For each message, call Reset; Supply if there are
// tensors; Decode for each value, in the order in which the sender encoded them; and Finish. A
// Decoder reuses its memory for the next message. It must not be used concurrently.
//
// The Read methods are for custom encodings. They return an error that matches ErrCorrupt if the
// bytes of the message cannot be such a value.
type Decoder struct {
	registry *Registry
	last     lastPlan
	limits   Limits
	err      error

	state
	cursor               // at the values; in a custom encoding, limited to its bytes
	values        []byte // of all values
	depth         int
	replays       int  // nesting depth of skipped objects that are being decoded after all
	customSkipped bool // a custom encoding, which may contain objects, was skipped
	placed        bool // Place was called

	memory, elements, expanded int // remaining budgets

	types    []typeEntry
	matches  map[pair]*match
	objects  []decodedObject
	parts    []Part
	views    []viewEntry
	viewData []byte // the table of views
	storages []*tensor.Storage
	headers  []header
	shape    [2 * tensor.MaxRank]int // shape and strides of the view being decoded
}

// NewDecoder returns a Decoder that finds the names of types in interfaces, registered errors and
// custom encodings in r, which it keeps; other types need not be registered. limits bounds each
// message; its zero fields stand for the defaults. Call Reset before the first value.
func NewDecoder(r *Registry, limits Limits) *Decoder {
	return &Decoder{registry: r, limits: limits.withDefaults()}
}

// Reset ends the last message and begins another one, of which the slice message has all bytes but
// the tensors. It decodes the tables at the end of the slice, so that Parts and Header can be used
// before the memory of the tensors has arrived. The Decoder keeps the slice until Reset or Forget
// and reads from it until Finish, and Header returns parts of it, so the bytes must not change
// while either is in use. Decoded values do not share their memory. The error matches ErrCorrupt or
// ErrLimit; Decode, Views, Place, Supply and Finish then return the same error.
func (d *Decoder) Reset(message []byte) error {
	d.Forget()
	d.err = d.splitMessage(message)
	return d.err
}

// Forget releases all references to the last message, its storages and the values of SetState, for
// example before the Decoder is returned to a pool. Call Reset before the next use.
func (d *Decoder) Forget() {
	d.state.reset()
	d.depth, d.replays, d.customSkipped, d.placed = 0, 0, false, false
	d.cursor, d.values, d.viewData = cursor{}, nil, nil
	d.types = cleared(d.types)
	clear(d.matches)
	d.objects = cleared(d.objects)
	d.parts = cleared(d.parts)
	d.views = cleared(d.views)
	d.storages = nil
	for i := range d.headers {
		h := &d.headers[i]
		if h.data = nil; len(h.name) > maxKeptName {
			h.name = ""
		}
	}
	d.headers = d.headers[:0]
}

// splitMessage decodes the tables of the message, sets the budgets of d according to the Limits and
// the size of the message, and places d.cursor at the first value. d refers to the memory of the
// message from then on. The error matches ErrCorrupt or ErrLimit. Forget must have been called
// before.
func (d *Decoder) splitMessage(message []byte) error {
	if len(message) > d.limits.Bytes {
		return errorf(ErrLimit, "message of %d bytes, at most %d", len(message), d.limits.Bytes)
	}
	if len(message) < prefixSize || message[0] != version {
		return corruptf("no message of version %d", version)
	}
	n := binary.LittleEndian.Uint32(message[1:])
	body := message[prefixSize:]
	if uint64(n) > uint64(len(body)) {
		return corruptf("values of %d bytes in %d", n, len(body))
	}
	d.memory = min(d.limits.MemoryBytes, minMemory+times(memoryFactor, len(message)))
	d.elements, d.expanded = d.limits.MaxElements, d.limits.ExpandedBytes
	tables := cursor{data: body[n:]}
	err := d.readTypes(&tables)
	if err == nil {
		err = d.readParts(&tables)
	}
	if err == nil {
		err = d.readViews(&tables)
	}
	if err == nil {
		err = d.readHeaders(&tables)
	}
	if err != nil {
		return err
	}
	if tables.remaining() > 0 {
		return corruptf("%d bytes after the message", tables.remaining())
	}
	d.values = body[:n:n]
	d.cursor = cursor{data: d.values}
	return nil
}

// Decode decodes the next value into the variable that ptr points to, which it overwrites. Struct
// fields that the sender does not have become zero; fields that only the sender has are skipped. A
// value that was encoded from an interface is decoded to an interface: Decode(new(any)). Decoded
// tensors are those given to Place, or views of the storages given to Supply. Other parts of the
// value are in new memory, or in memory that a custom encoding chooses; the value never shares
// memory with the message itself.
//
// A custom encoding may call Decode for a part of its value that it wrote with Encode.
//
// The error is an *Error that matches ErrCorrupt, ErrLimit, ErrType or ErrStorage, or
// ErrUnsupported if ptr is not a pointer, is nil, or its type cannot be decoded; or it wraps the
// error of a custom encoding or of package tensor. The variable may then be partly written. After
// an error, Decode, Views, Place, Supply and Finish return the same error until Reset.
func (d *Decoder) Decode(ptr any) error {
	if d.err != nil {
		return d.err
	}
	d.err = d.decode(ptr)
	return d.err
}

func (d *Decoder) decode(ptr any) error {
	depth := d.depth
	v := reflect.ValueOf(ptr)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return errorf(ErrUnsupported, "%T: want a pointer to the variable", ptr)
	}
	t := v.Type().Elem()
	var entry *typeEntry
	n, err := d.uvarint()
	if err == nil {
		entry, err = d.typeEntry(n)
	}
	if err == nil {
		var p *plan
		var s *schema
		if p, s, err = d.resolve(entry, t); err == nil {
			err = p.decode(d, s, v.UnsafePointer())
		}
	}
	if err != nil {
		return addSegment(err, root(t, depth))
	}
	return nil
}

// Finish ends a message. It returns nil if Reset and all calls of Decode succeeded and no value is
// left. Otherwise it returns the error of the first of these calls that failed, or an error that
// matches ErrCorrupt if there are values that were not decoded.
func (d *Decoder) Finish() error {
	if d.err == nil && d.remaining() > 0 {
		d.err = corruptf("%d bytes of values were not decoded", d.remaining())
	}
	return d.err
}

func (d *Decoder) enter() error {
	if d.depth >= d.limits.MaxDepth {
		return errorf(ErrLimit, "nested more than %d deep", d.limits.MaxDepth)
	}
	d.depth++
	return nil
}

func (d *Decoder) leave() { d.depth-- }

// charge subtracts bytes from the memory that decoding this message may still allocate. It must be
// called before the allocation. If bytes is negative or exceeds that memory, charge subtracts
// nothing and returns an error that matches ErrLimit.
func (d *Decoder) charge(bytes int) error {
	if bytes < 0 || bytes > d.memory {
		return errorf(ErrLimit, "values take more memory than Limits.MemoryBytes and the size of the message allow")
	}
	d.memory -= bytes
	return nil
}

// chargeElements subtracts n from the number of elements of slices and maps, and n*size bytes from
// the memory, that decoding this message may still allocate. If either is exceeded, the error
// matches ErrLimit.
func (d *Decoder) chargeElements(n, size int) error {
	if n > d.elements {
		return errorf(ErrLimit, "slices and maps of more than %d elements", d.limits.MaxElements)
	}
	d.elements -= n
	if size > 0 && n > math.MaxInt/size {
		return d.charge(math.MaxInt)
	}
	return d.charge(n * size)
}

// length reads the number n of elements of a slice or map. If the slice or map is nil rather than
// empty, isNil is true and n is 0. each is the minimum size of an encoded element in bytes. The
// error matches ErrCorrupt if there is no number or the remaining bytes are too few for n elements.
// After an error n and isNil have no meaning.
func (d *Decoder) length(each int) (n int, isNil bool, err error) {
	n, err = d.size()
	if err != nil || n == 0 {
		return 0, true, err
	}
	if n--; n > d.remaining()/max(each, 1) && each > 0 {
		return 0, false, corruptf("byte %d: %d elements of at least %d bytes in %d bytes", d.pos, n, each, d.remaining())
	}
	return n, false, nil
}

// ReadUint reads and returns a number that Encoder.WriteUint wrote. If the next bytes are not a
// number, it returns 0 and an error that matches ErrCorrupt.
func (d *Decoder) ReadUint() (uint64, error) { return d.uvarint() }

// ReadInt reads and returns a number that Encoder.WriteInt wrote. If the next bytes are not a
// number, it returns 0 and an error that matches ErrCorrupt.
func (d *Decoder) ReadInt() (int64, error) { return d.varint() }

// ReadBool reads and returns a value that Encoder.WriteBool wrote. If the next byte is neither 0
// nor 1, or there is none, the result is false and the error matches ErrCorrupt.
func (d *Decoder) ReadBool() (bool, error) {
	b, err := d.byte()
	if b > 1 {
		return false, corruptf("byte %d: not a bool", d.pos-1)
	}
	return b == 1, err
}

// ReadFloat64 reads a number that Encoder.WriteFloat64 wrote. If fewer than 8 bytes remain, it
// returns 0 and an error that matches ErrCorrupt.
func (d *Decoder) ReadFloat64() (v float64, err error) {
	p, err := d.next(8)
	if err != nil {
		return 0, err
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(p)), nil
}

// ReadString reads a text that Encoder.WriteString wrote and returns a copy. The error matches
// ErrCorrupt if the bytes are too few, or ErrLimit if the copy exceeds the memory that the message
// may use; the result is then "".
func (d *Decoder) ReadString() (string, error) {
	p, err := d.text()
	if err == nil {
		err = d.charge(len(p))
	}
	if err != nil {
		return "", err
	}
	return string(p), nil
}

// ReadBytes reads bytes that Encoder.WriteBytes wrote and returns a copy, which is empty, not nil,
// if there are none. The error matches ErrCorrupt if the bytes are too few, or ErrLimit if the copy
// exceeds the memory that the message may use; the result is then nil.
func (d *Decoder) ReadBytes() ([]byte, error) {
	p, err := d.text()
	if err == nil {
		err = d.charge(len(p))
	}
	if err != nil {
		return nil, err
	}
	return append([]byte{}, p...), nil
}

// ReadTensor reads a tensor that Encoder.WriteTensor wrote, or returns nil if nil was written. The
// result is the tensor that Place has set, or else a view of one of the storages given to Supply,
// not a copy. If the sender wrote the same tensor several times, each call returns the same
// *tensor.Tensor. The error matches ErrCorrupt or ErrLimit, or ErrStorage if there is no storage
// for the tensor; the tensor must then not be used.
func (d *Decoder) ReadTensor() (*tensor.Tensor, error) {
	n, err := d.uvarint()
	if err != nil || n == 0 {
		return nil, err
	}
	return d.view(n - 1)
}

// cursor reads numbers and bytes from data, from position pos on. The errors of its methods match
// ErrCorrupt.
type cursor struct {
	data []byte
	pos  int
}

func (c *cursor) remaining() int { return len(c.data) - c.pos }

func (c *cursor) uvarint() (uint64, error) {
	if c.pos < len(c.data) && c.data[c.pos] < 0x80 {
		c.pos++
		return uint64(c.data[c.pos-1]), nil
	}
	v, n := binary.Uvarint(c.data[c.pos:])
	if n <= 0 {
		return 0, corruptf("byte %d: no number", c.pos)
	}
	c.pos += n
	return v, nil
}

func (c *cursor) varint() (int64, error) {
	v, err := c.uvarint()
	return int64(v>>1) ^ -int64(v&1), err
}

// size reads a varint and returns it as an int. The error matches ErrCorrupt if there is none or if
// it does not fit in an int; the result then has no meaning.
func (c *cursor) size() (int, error) {
	v, err := c.uvarint()
	if err == nil && v > math.MaxInt {
		err = corruptf("byte %d: the number %d is too large for a size", c.pos, v)
	}
	return int(v), err
}

// count reads a number of items and returns it. The error matches ErrCorrupt if there is no number
// or if the remaining bytes are too few for that many items; the result then has no meaning. each,
// the minimum size of an item in bytes, must be positive.
func (c *cursor) count(each int) (int, error) {
	n, err := c.size()
	if err == nil && n > c.remaining()/each {
		err = corruptf("byte %d: %d items of at least %d bytes in %d bytes", c.pos, n, each, c.remaining())
	}
	return n, err
}

// next returns the next n bytes and moves past them. The result is a part of c.data, not a copy. If
// n is negative or fewer bytes remain, next does not move and returns an error that matches
// ErrCorrupt.
func (c *cursor) next(n int) ([]byte, error) {
	if n < 0 || n > c.remaining() {
		return nil, corruptf("byte %d: %d bytes, but %d remain", c.pos, n, c.remaining())
	}
	p := c.data[c.pos : c.pos+n : c.pos+n]
	c.pos += n
	return p, nil
}

// text reads a length and returns that many bytes, which follow it. The result is a part of c.data,
// not a copy. If there is no length or fewer bytes remain, text returns nil and an error that
// matches ErrCorrupt.
func (c *cursor) text() ([]byte, error) {
	n, err := c.size()
	if err != nil {
		return nil, err
	}
	return c.next(n)
}

func (c *cursor) byte() (byte, error) {
	if c.pos >= len(c.data) {
		return 0, corruptf("byte %d: unexpected end", c.pos)
	}
	c.pos++
	return c.data[c.pos-1], nil
}
