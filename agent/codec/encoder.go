package codec

import (
	"encoding/binary"
	"math"
	"reflect"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Encoder encodes one message after the other. For each, call Reset, then Encode for
// each value, then Finish. An Encoder reuses its memory, so that small messages do not
// allocate; keep it, or put it into a pool. It must not be used concurrently.
//
// The Write methods are for custom encodings.
type Encoder struct {
	registry *Registry
	last     lastPlan
	limits   Limits
	state

	buf   []byte
	start int // of the message in buf
	depth int
	err   error

	finished bool

	types        index[typeKey]
	typeRows     []typeRow
	objects      index[object]
	unfinished   []bool // for each object
	visits       map[visit]struct{}
	views        index[*tensor.Tensor]
	storages     index[*tensor.Storage]
	extents      []extent // of each view
	order        []int    // indices of extents, sorted by storage and position
	parts        []pipe.Tensor
	partStorages []*tensor.Storage // of the parts
	headers      []header
}

// NewEncoder returns an Encoder that finds the names of types in interfaces, registered errors and
// custom encodings in r, which it keeps; other types need not be registered. The Encoder is ready
// for the first message. Of limits it uses only MaxDepth, where 0 stands for the default.
func NewEncoder(r *Registry, limits Limits) *Encoder {
	e := &Encoder{registry: r, limits: limits.withDefaults()}
	e.Reset(nil)
	return e
}

// Reset begins a message and releases all references to the last one: its tensors, headers and
// values of SetState. The message is appended to dst, whose spare capacity the Encoder uses until
// Finish. It keeps the slice until the next Reset. Call Reset(nil) before the Encoder is returned
// to a pool.
func (e *Encoder) Reset(dst []byte) {
	e.state.reset()
	e.start, e.depth, e.err, e.finished = len(dst), 0, nil, false
	e.buf = append(dst, version, 0, 0, 0, 0)
	e.types.reset()
	e.typeRows = cleared(e.typeRows)
	e.objects.reset()
	e.unfinished = e.unfinished[:0]
	clear(e.visits)
	e.views.reset()
	e.storages.reset()
	e.extents = cleared(e.extents)
	e.parts = cleared(e.parts)
	e.partStorages = cleared(e.partStorages)
	e.headers = cleared(e.headers)
}

// Encode encodes the value that ptr points to at the end of the message. If ptr points to an
// interface, as in Encode(new(any)), the message carries the name of the dynamic type. The value
// must not change until Encode returns. Encode does not copy tensors in it: the Encoder keeps them
// until Reset, and their memory must not change until the message has been sent.
//
// A custom encoding may call Encode for a part of its value.
//
// The error is an *Error. It matches ErrUnsupported if ptr is not a pointer or is nil, or if a
// value cannot be encoded; ErrCycle if the value contains itself; ErrLimit if it is nested too
// deep; or ErrType if an interface holds an unregistered type. Otherwise it wraps the error of a
// custom encoding or of package tensor. After an error, Encode and Finish return the same error
// until Reset.
func (e *Encoder) Encode(ptr any) error {
	if err := e.usable(); err != nil {
		return err
	}
	e.err = e.encode(ptr)
	return e.err
}

// usable returns nil if values may still be encoded. Otherwise it returns the error of an earlier
// call, or one that matches ErrUnsupported if Finish was called since Reset.
func (e *Encoder) usable() error {
	if e.err == nil && e.finished {
		e.err = errorf(ErrUnsupported, "the message is finished: call Reset first")
	}
	return e.err
}

func (e *Encoder) encode(ptr any) error {
	depth := e.depth
	v := reflect.ValueOf(ptr)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return errorf(ErrUnsupported, "%T: want a pointer to the value", ptr)
	}
	t := v.Type().Elem()
	p, err := e.last.of(e.registry, t)
	if err == nil {
		e.WriteUint(uint64(e.typeIndex(typeKey{t, false}, p, "", false)))
		err = p.encode(e, v.UnsafePointer())
	}
	if err != nil {
		return addSegment(err, root(t, depth))
	}
	return nil
}

// root returns the first segment of an error's path for a value of type t given to Encode or
// Decode: the name of the type. If depth, the nesting depth at the call, is not 0, a custom
// encoding made the call; the segment is then put in parentheses after a dot, since it continues
// the path of an outer value.
func root(t reflect.Type, depth int) string {
	if depth > 0 {
		return ".(" + t.String() + ")"
	}
	return t.String()
}

// Finish ends the message. It returns the slice given to Reset with the message appended, which may
// be in new memory, and the tensors to send with it, in the order of [Decoder.Parts]. The caller
// may set their target devices. The tensors refer to the memory of the encoded tensors, or to
// contiguous copies where that saves much memory. Neither the bytes nor that memory may change
// until they have been sent. The slice of tensors is valid until Reset.
//
// If there is an error, both results are nil. The error is that of an earlier call, one that
// matches ErrLimit, one of package tensor, or one that matches ErrUnsupported if the message is
// finished already.
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

// Storages returns, for each tensor that Finish returned, the storage that contains its memory. The
// whole storage stays reachable as long as the tensor is, even if only a small part of it is sent.
// The slice belongs to the Encoder and is valid until Reset.
func (e *Encoder) Storages() []*tensor.Storage { return e.partStorages }

// Storages returns the storages of all tensors in the value to which ptr points, each once. They are found as by Encode,
// with the types and custom encodings in r, and the error is that of Encode: the value could not be sent either.
func Storages(r *Registry, limits Limits, ptr any) ([]*tensor.Storage, error) {
	e := NewEncoder(r, limits)
	if err := e.Encode(ptr); err != nil {
		return nil, err
	}
	var all []*tensor.Storage
	found := map[int]bool{}
	for _, x := range e.extents {
		if !found[x.storage] {
			found[x.storage] = true
			all = append(all, x.tensor.Storage())
		}
	}
	return all, nil
}

func (e *Encoder) finish() error {
	values := len(e.buf) - e.start - prefixSize
	if uint64(values) > math.MaxUint32 {
		return errorf(ErrLimit, "values of %d bytes", values)
	}
	binary.LittleEndian.PutUint32(e.buf[e.start+1:], uint32(values))
	e.WriteUint(uint64(len(e.typeRows)))
	for _, u := range e.typeRows {
		text, hash := u.plan.encoded()
		e.WriteString(u.name)
		e.WriteBool(u.pointer)
		e.buf = binary.LittleEndian.AppendUint64(e.buf, hash)
		e.WriteUint(uint64(len(text)))
		e.buf = append(e.buf, text...)
	}
	if err := e.appendTensors(); err != nil {
		return err
	}
	if len(e.headers) > maxHeaders {
		return errorf(ErrLimit, "%d headers, at most %d", len(e.headers), maxHeaders)
	}
	e.WriteUint(uint64(len(e.headers)))
	for _, h := range e.headers {
		e.WriteString(h.name)
		e.WriteBytes(h.data)
	}
	return nil
}

// visit identifies a slice or map that is being encoded, to detect one that contains itself.
type visit struct {
	address unsafe.Pointer
	n       int
	typ     reflect.Type
}

// cycleCheckDepth is the depth from which slices and maps are recorded in visits, to
// detect those that contain themselves.
const cycleCheckDepth = 32

func (e *Encoder) enter(address unsafe.Pointer, n int, t reflect.Type) (visit, error) {
	if err := e.descend(); err != nil {
		return visit{}, err
	}
	v := visit{address, n, t}
	if e.depth <= cycleCheckDepth {
		return v, nil
	}
	if _, ok := e.visits[v]; ok {
		return v, errorf(ErrCycle, "through a %v", t)
	}
	if e.visits == nil {
		e.visits = map[visit]struct{}{}
	}
	e.visits[v] = struct{}{}
	return v, nil
}

func (e *Encoder) leave(v visit) {
	if e.depth > cycleCheckDepth {
		delete(e.visits, v)
	}
	e.depth--
}

func (e *Encoder) descend() error {
	if e.depth >= e.limits.MaxDepth {
		return errorf(ErrLimit, "nested more than %d deep", e.limits.MaxDepth)
	}
	e.depth++
	return nil
}

// WriteUint appends v to the message as a varint of 1 to 10 bytes.
func (e *Encoder) WriteUint(v uint64) {
	if v < 0x80 {
		e.buf = append(e.buf, byte(v))
		return
	}
	e.buf = binary.AppendUvarint(e.buf, v)
}

// WriteInt appends v to the message as a zigzag varint of 1 to 10 bytes.
func (e *Encoder) WriteInt(v int64) { e.WriteUint(uint64(v<<1) ^ uint64(v>>63)) }

// WriteBool appends v to the message as one byte, 0 or 1.
func (e *Encoder) WriteBool(v bool) {
	b := byte(0)
	if v {
		b = 1
	}
	e.buf = append(e.buf, b)
}

// WriteFloat64 appends v to the message as 8 bytes in little endian order.
func (e *Encoder) WriteFloat64(v float64) {
	e.buf = binary.LittleEndian.AppendUint64(e.buf, math.Float64bits(v))
}

// WriteString appends the length of v and a copy of its bytes to the message.
func (e *Encoder) WriteString(v string) { e.buf = appendString(e.buf, v) }

// WriteBytes appends the length of v and a copy of its bytes to the message. The receiver cannot
// distinguish a nil v from an empty one.
func (e *Encoder) WriteBytes(v []byte) {
	e.WriteUint(uint64(len(v)))
	e.buf = append(e.buf, v...)
}

// WriteTensor appends a reference to t, which may be nil, to the message. WriteTensor does not copy
// the memory of t, which is sent with the message: the Encoder keeps t until Reset, and the memory
// must not change until the message has been sent. If the memory was released, the error is
// tensor.ErrReleased.
func (e *Encoder) WriteTensor(t *tensor.Tensor) error {
	if t == nil {
		e.WriteUint(0)
		return nil
	}
	n, ok := e.views.find(t)
	if !ok {
		buf, err := t.Storage().Buffer()
		if err != nil {
			return err
		}
		n = e.views.add(t)
		e.extents = append(e.extents, e.extent(t, buf))
	}
	e.WriteUint(uint64(n) + 1)
	return nil
}

// index assigns the numbers 0, 1, ... to keys in the order of their addition. Up to linearMax keys
// are searched one by one, which is faster than a map and needs no memory.
type index[K comparable] struct {
	keys      []K
	positions map[K]int // used with more than linearMax keys
}

// linearMax bounds the keys that are searched one by one.
const linearMax = 16

func (x *index[K]) find(k K) (position int, ok bool) {
	if len(x.keys) > linearMax {
		position, ok = x.positions[k]
		return position, ok
	}
	for i := range x.keys {
		if x.keys[i] == k {
			return i, true
		}
	}
	return 0, false
}

// add gives the next number to k and returns it. k must not be in the index; the index keeps it
// until reset.
func (x *index[K]) add(k K) int {
	position := len(x.keys)
	x.keys = append(x.keys, k)
	switch {
	case position > linearMax:
		x.positions[k] = position
	case position == linearMax:
		if x.positions == nil {
			x.positions = make(map[K]int, 2*linearMax)
		}
		for i, k := range x.keys {
			x.positions[k] = i
		}
	}
	return position
}

// reset removes all keys from the index. It keeps the memory of the index for the next message
// unless there were more than maxRetained keys.
func (x *index[K]) reset() {
	if len(x.keys) > maxRetained {
		*x = index[K]{}
		return
	}
	clear(x.keys)
	x.keys = x.keys[:0]
	clear(x.positions)
}

// maxRetained bounds the entries of a table for which memory is kept between messages.
const maxRetained = 1024

// cleared sets the elements of s to zero and returns s with length 0, for reuse of its memory. If
// the capacity is more than maxRetained, it returns nil instead, so that the memory is freed.
// Elements beyond the length of s are not set to zero.
func cleared[T any](s []T) []T {
	if cap(s) > maxRetained {
		return nil
	}
	clear(s)
	return s[:0]
}
