package codec

import (
	"encoding/binary"
	"math"
	"reflect"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Decoder reads one message after the other: Reset, Supply where there are
// tensors, Decode for each value in the order of the sender, Finish. It keeps its
// tables from one message to the next. It is for one goroutine.
//
// The methods named after types are for the application's own encodings, and
// return an error that matches ErrCorrupt where the bytes are something else.
type Decoder struct {
	registry *Registry
	last     lastPlan
	limits   Limits
	state    state
	err      error

	cursor         // over the values; within own encodings, over theirs
	values  []byte // all of them
	depth   int
	replays int  // objects being decoded that had been skipped
	lost    bool // own encodings were skipped, and with them perhaps objects

	memory, elements, expanded int // what may still be taken

	types    []typeEntry
	matches  map[pair]*match
	objects  []arrived
	parts    []Part
	views    []viewEntry
	viewData []byte // the table of views
	storages []*tensor.Storage
	headers  []header
	shape    [2 * tensor.MaxRank]int // of the view at hand, strides behind
}

// NewDecoder makes a Decoder. Call Reset before the first value.
func NewDecoder(r *Registry, limits Limits) *Decoder {
	return &Decoder{registry: r, limits: limits.withDefaults()}
}

// Reset begins a message and reads its tables, so that Parts and Header can be
// asked before the tensors have come. The message must stay as it is as long as
// values are decoded and headers used. The error matches ErrCorrupt or ErrLimit.
func (d *Decoder) Reset(message []byte) error {
	d.Forget()
	d.err = d.front(message)
	return d.err
}

// Forget lets go of everything about the last message. Do that before a Decoder
// rests in a pool.
func (d *Decoder) Forget() {
	d.state.reset()
	d.depth, d.replays, d.lost = 0, 0, false
	d.cursor, d.values, d.viewData = cursor{}, nil, nil
	d.types = emptied(d.types)
	clear(d.matches)
	d.objects = emptied(d.objects)
	d.parts = emptied(d.parts)
	d.views = emptied(d.views)
	d.storages = nil
	d.headers = emptied(d.headers)
}

// front cuts a message into values and tables.
func (d *Decoder) front(message []byte) error {
	if len(message) > d.limits.Bytes {
		return fault(ErrLimit, "message of %d bytes, at most %d", len(message), d.limits.Bytes)
	}
	if len(message) < frontSize || message[0] != version {
		return corrupt("no message of version %d", version)
	}
	n := binary.LittleEndian.Uint32(message[1:])
	rest := message[frontSize:]
	if uint64(n) > uint64(len(rest)) {
		return corrupt("values of %d bytes in %d", n, len(rest))
	}
	d.memory = min(d.limits.Memory, slack+times(factor, len(message)))
	d.elements, d.expanded = d.limits.Elements, d.limits.ExpandedBytes
	tables := cursor{data: rest[n:]}
	if err := d.tables(&tables); err != nil {
		return err
	}
	if tables.left() > 0 {
		return corrupt("%d bytes behind the message", tables.left())
	}
	d.values = rest[:n:n]
	d.cursor = cursor{data: d.values}
	return nil
}

// tables reads what lies behind the values.
func (d *Decoder) tables(c *cursor) error {
	if err := d.readTypes(c); err != nil {
		return err
	}
	if err := d.readParts(c); err != nil {
		return err
	}
	if err := d.readViews(c); err != nil {
		return err
	}
	return d.readHeaders(c)
}

// Decode reads the next value into what ptr points to, and overwrites it. Of a
// struct, fields that the sender does not have become zero; what it has and ptr
// has not is skipped. A value that the sender encoded from an interface is
// decoded to an interface: Decode(new(any)).
//
// An encoding of the application's own may call it for a part of its value, which
// the sender wrote with Encode.
//
// The error is an *Error that matches ErrCorrupt, ErrLimit, ErrType or ErrStorage;
// or it is what an encoding of the application's own returned, or one of package
// tensor. What ptr points to may then have been written in part. After an error
// the message is lost, and all calls return it until Reset.
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
		return fault(ErrUnsupported, "%T: want a pointer to where the value goes", ptr)
	}
	t := v.Type().Elem()
	err := d.decodeRoot(t, v.UnsafePointer())
	if err != nil {
		return at(err, root(t, depth))
	}
	return nil
}

func (d *Decoder) decodeRoot(t reflect.Type, to unsafe.Pointer) error {
	n, err := d.uvarint()
	if err != nil {
		return err
	}
	entry, err := d.typeEntry(n)
	if err != nil {
		return err
	}
	p, s, err := d.resolve(entry, t)
	if err != nil {
		return err
	}
	return p.decode(d, s, to)
}

// Finish ends a message. The error is that of an earlier call, or matches
// ErrCorrupt if there are values that nobody decoded.
func (d *Decoder) Finish() error {
	if d.err == nil && d.left() > 0 {
		d.err = corrupt("%d bytes of values behind the last", d.left())
	}
	return d.err
}

func (d *Decoder) enter() error {
	if d.depth >= d.limits.Depth {
		return fault(ErrLimit, "nested more than %d deep", d.limits.Depth)
	}
	d.depth++
	return nil
}

func (d *Decoder) leave() { d.depth-- }

// spend takes from the memory that the values may take.
func (d *Decoder) spend(bytes int) error {
	if bytes < 0 || bytes > d.memory {
		return fault(ErrLimit, "values take more memory than Limits.Memory and the size of the message allow")
	}
	d.memory -= bytes
	return nil
}

// spendElements takes memory for n elements.
func (d *Decoder) spendElements(n, size int) error {
	if n > d.elements {
		return fault(ErrLimit, "slices and maps of more than %d elements", d.limits.Elements)
	}
	d.elements -= n
	if size > 0 && n > math.MaxInt/size {
		return d.spend(math.MaxInt)
	}
	return d.spend(n * size)
}

// length is the number of elements of a slice or map of which each takes at
// least so many bytes.
func (d *Decoder) length(each int) (n int, isNil bool, err error) {
	n, err = d.size()
	if err != nil || n == 0 {
		return 0, true, err
	}
	if n--; n > d.left()/max(each, 1) && each > 0 {
		return 0, false, corrupt("byte %d: %d elements of at least %d bytes in %d bytes", d.pos, n, each, d.left())
	}
	return n, false, nil
}

// Uint reads what Encoder.Uint wrote.
func (d *Decoder) Uint() (uint64, error) { return d.uvarint() }

// Int reads what Encoder.Int wrote.
func (d *Decoder) Int() (int64, error) { return d.varint() }

// Bool reads what Encoder.Bool wrote.
func (d *Decoder) Bool() (bool, error) {
	b, err := d.byte()
	if b > 1 {
		return false, corrupt("byte %d: no bool", d.pos-1)
	}
	return b == 1, err
}

// Float64 reads what Encoder.Float64 wrote.
func (d *Decoder) Float64() (v float64, err error) {
	p, err := d.take(8)
	if err != nil {
		return 0, err
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(p)), nil
}

// String reads what Encoder.String wrote.
func (d *Decoder) String() (string, error) {
	p, err := d.text()
	if err == nil {
		err = d.spend(len(p))
	}
	return string(p), err
}

// Bytes reads what Encoder.Bytes wrote. It is a copy.
func (d *Decoder) Bytes() ([]byte, error) {
	p, err := d.text()
	if err == nil {
		err = d.spend(len(p))
	}
	return append([]byte{}, p...), err
}

// Tensor reads what Encoder.Tensor wrote. A tensor that was written several
// times is the same one each time.
func (d *Decoder) Tensor() (*tensor.Tensor, error) {
	n, err := d.uvarint()
	if err != nil || n == 0 {
		return nil, err
	}
	return d.view(n - 1)
}
