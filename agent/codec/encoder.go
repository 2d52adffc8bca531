package codec

import (
	"encoding/binary"
	"math"
	"reflect"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Encoder makes one message after the other: Reset, then Encode for each value,
// then Finish. It keeps its tables from one message to the next, so that small
// messages take no memory; keep it, or pool it. It is for one goroutine.
//
// The methods named after types are for the application's own encodings.
type Encoder struct {
	registry *Registry
	last     lastPlan
	limits   Limits
	state    state

	buf   []byte
	start int // of the message in buf
	depth int
	err   error

	finished bool

	types      index[typeKey]
	uses       []typeUse
	objects    index[object]
	unfinished []bool // for each object
	visits     map[visit]struct{}
	views      index[*tensor.Tensor]
	storages   index[*tensor.Storage]
	pieces     []piece // for each view
	order      []int   // views, sorted for cutting
	parts      []pipe.Tensor
	owners     []*tensor.Storage // of the parts
	headers    []header
}

// NewEncoder makes an Encoder. Of the limits only Depth counts.
func NewEncoder(r *Registry, limits Limits) *Encoder {
	e := &Encoder{registry: r, limits: limits.withDefaults()}
	e.Reset(nil)
	return e
}

// Reset begins a message, which is appended to dst, and lets go of everything
// about the last one. Do that before an Encoder rests in a pool.
func (e *Encoder) Reset(dst []byte) {
	e.state.reset()
	e.start, e.depth, e.err, e.finished = len(dst), 0, nil, false
	e.buf = append(dst, version, 0, 0, 0, 0)
	e.types.reset()
	e.uses = emptied(e.uses)
	e.objects.reset()
	e.unfinished = e.unfinished[:0]
	clear(e.visits)
	e.views.reset()
	e.storages.reset()
	e.pieces = emptied(e.pieces)
	e.parts = emptied(e.parts)
	e.owners = emptied(e.owners)
	e.headers = emptied(e.headers)
}

// Encode appends the value that ptr points to. To let the other end choose the
// type by its name point to an interface, as in Encode(new(any)).
//
// An encoding of the application's own may call it for a part of its value.
//
// The error is an *Error that matches ErrUnsupported, ErrCycle, ErrType for an
// unregistered type in an interface, or ErrLimit; or it is what an encoding of
// the application's own returned, with the path. After an error the message is
// lost, and all calls return it until Reset.
func (e *Encoder) Encode(ptr any) error {
	if err := e.usable(); err != nil {
		return err
	}
	e.err = e.encode(ptr)
	return e.err
}

// usable is an error if the message is lost or has its end.
func (e *Encoder) usable() error {
	if e.err == nil && e.finished {
		e.err = fault(ErrUnsupported, "the message is finished, more needs a Reset")
	}
	return e.err
}

func (e *Encoder) encode(ptr any) error {
	depth := e.depth
	v := reflect.ValueOf(ptr)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fault(ErrUnsupported, "%T: want a pointer to the value", ptr)
	}
	t := v.Type().Elem()
	p, err := e.last.of(e.registry, t)
	if err == nil {
		e.Uint(uint64(e.use(typeKey{t, false}, p, "", false)))
		err = p.encode(e, v.UnsafePointer())
	}
	if err != nil {
		return at(err, root(t, depth))
	}
	return nil
}

// root is the segment of a path for a type at its beginning or, in an encoding of
// the application's own, in its middle.
func root(t reflect.Type, depth int) string {
	if depth > 0 {
		return ".(" + t.String() + ")"
	}
	return t.String()
}

// Finish ends the message and returns it: dst and the bytes behind it, and the
// tensors that travel with them, in the order of [Decoder.Parts]. The target
// devices are open, the caller may set them. Bytes and tensors must stay as they
// are until they have left; the list of tensors is good until Reset. The tensors
// refer to the memory of those that were encoded.
//
// The error is that of Encode, or one of package tensor.
func (e *Encoder) Finish() ([]byte, []pipe.Tensor, error) {
	if err := e.usable(); err != nil {
		return nil, nil, err
	}
	if e.err = e.finish(); e.err != nil {
		return nil, nil, e.err
	}
	e.finished = true
	return e.buf, e.parts, nil
}

// Storages returns, for each tensor that Finish returned, the storage in whose memory it
// lies: the tensor keeps the whole storage reachable, however small a part of it the tensor
// is. The list is valid until Reset.
func (e *Encoder) Storages() []*tensor.Storage { return e.owners }

func (e *Encoder) finish() error {
	values := len(e.buf) - e.start - frontSize
	if uint64(values) > math.MaxUint32 {
		return fault(ErrLimit, "values of %d bytes", values)
	}
	binary.LittleEndian.PutUint32(e.buf[e.start+1:], uint32(values))
	e.appendTypes()
	if err := e.appendTensors(); err != nil {
		return err
	}
	return e.appendHeaders()
}

// visit is a slice or a map on the way from the root to what is encoded now.
type visit struct {
	address unsafe.Pointer
	n       int
	typ     reflect.Type
}

// watch is the depth from which slices and maps are remembered, to find those
// that contain themselves.
const watch = 32

func (e *Encoder) enter(address unsafe.Pointer, n int, t reflect.Type) (visit, error) {
	if err := e.descend(); err != nil {
		return visit{}, err
	}
	v := visit{address, n, t}
	if e.depth <= watch {
		return v, nil
	}
	if _, ok := e.visits[v]; ok {
		return v, fault(ErrCycle, "by way of a %v", t)
	}
	if e.visits == nil {
		e.visits = map[visit]struct{}{}
	}
	e.visits[v] = struct{}{}
	return v, nil
}

func (e *Encoder) leave(v visit) {
	if e.depth > watch {
		delete(e.visits, v)
	}
	e.depth--
}

func (e *Encoder) descend() error {
	if e.depth >= e.limits.Depth {
		return fault(ErrLimit, "nested more than %d deep", e.limits.Depth)
	}
	e.depth++
	return nil
}

// Uint appends a number in 1 to 10 bytes.
func (e *Encoder) Uint(v uint64) {
	if v < 0x80 {
		e.buf = append(e.buf, byte(v))
		return
	}
	e.buf = binary.AppendUvarint(e.buf, v)
}

// Int appends a number in 1 to 10 bytes.
func (e *Encoder) Int(v int64) { e.Uint(uint64(v<<1) ^ uint64(v>>63)) }

// Bool appends one byte.
func (e *Encoder) Bool(v bool) {
	b := byte(0)
	if v {
		b = 1
	}
	e.buf = append(e.buf, b)
}

// Float64 appends 8 bytes.
func (e *Encoder) Float64(v float64) {
	e.buf = binary.LittleEndian.AppendUint64(e.buf, math.Float64bits(v))
}

// String appends a text and its length.
func (e *Encoder) String(v string) { e.buf = appendString(e.buf, v) }

// Bytes appends bytes and their number.
func (e *Encoder) Bytes(v []byte) {
	e.Uint(uint64(len(v)))
	e.buf = append(e.buf, v...)
}

// Tensor lets a tensor, or nil, travel with the message. The error is
// tensor.ErrReleased.
func (e *Encoder) Tensor(t *tensor.Tensor) error {
	if t == nil {
		e.Uint(0)
		return nil
	}
	n, ok := e.views.find(t)
	if !ok {
		buf, err := t.Storage().Buffer()
		if err != nil {
			return err
		}
		n = e.views.add(t)
		e.pieces = append(e.pieces, e.piece(t, buf))
	}
	e.Uint(uint64(n) + 1)
	return nil
}
