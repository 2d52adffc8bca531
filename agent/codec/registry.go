package codec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Registry holds what an application encodes in addition to plain data: types that may occur in
// interfaces, by name; error values that keep their identity; and custom encodings. It also caches
// the plan of each type.
//
// Both ends must register the same names. Methods may be called concurrently. A registration
// applies to the messages that Encoders and Decoders begin afterwards.
type Registry struct {
	mu            sync.RWMutex
	types         map[string]reflect.Type
	names         map[reflect.Type]string
	sentinels     map[string]error
	sentinelNames map[error]string
	hooks         map[reflect.Type]hook
	refusals      []refusal
	plans         map[reflect.Type]*plan
	generation    atomic.Uint32 // incremented when the plans are discarded
}

// hook is a registered custom encoding of a type.
type hook struct {
	name   string
	encode func(*Encoder, unsafe.Pointer) error
	decode func(*Decoder, unsafe.Pointer) error
}

// NewRegistry returns a new Registry. It has the basic types, slices of them and maps from strings
// to them, time.Time, time.Duration, tensors, error, and common errors of the standard library and
// of package tensor, such as context.Canceled and io.EOF, each under its Go name.
func NewRegistry() *Registry {
	r := &Registry{
		types:         map[string]reflect.Type{},
		names:         map[reflect.Type]string{},
		sentinels:     map[string]error{},
		sentinelNames: map[error]string{},
		hooks:         map[reflect.Type]hook{},
		plans:         map[reflect.Type]*plan{},
	}
	for _, t := range commonTypes() {
		r.name(t.String(), t)
	}
	for name, err := range commonErrors() {
		r.sentinels[name], r.sentinelNames[err] = err, name
	}
	return r
}

// Register gives the type of sample a name, so that values of the type, and pointers to them, can
// be encoded in interfaces. The name identifies the type in messages. An error of a registered type
// keeps its fields, and errors.As finds it at the receiver.
//
// sample is only used for its type. A pointer, which may be nil, gives the name to the type it
// points to, unless the pointer type has a name itself. The error is nil also for a repeated call.
// It matches ErrRegistered if the name belongs to another type or the type has another name, and
// ErrUnsupported if name is empty or sample is a nil interface. Register does not check that the
// type can be encoded; Encode does.
func (r *Registry) Register(name string, sample any) error {
	t := reflect.TypeOf(sample)
	if t == nil || name == "" {
		return errorf(ErrUnsupported, "register needs a name and a sample, not %q and %T", name, sample)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.Kind() == reflect.Pointer && r.names[t] == "" {
		t = t.Elem()
	}
	if r.types[name] == t {
		return nil
	}
	return r.name(name, t)
}

// name registers t under the name. If the name or t is registered already, it changes nothing and
// returns an error that matches ErrRegistered. The caller holds r.mu.
func (r *Registry) name(name string, t reflect.Type) error {
	if other, ok := r.types[name]; ok {
		return errorf(ErrRegistered, "%v has the name %q already", other, name)
	}
	if other, ok := r.names[t]; ok {
		return errorf(ErrRegistered, "%v has the name %q already", t, other)
	}
	r.types[name], r.names[t] = t, name
	return nil
}

// RegisterError gives err, a value like io.EOF, a name. A message that has err, also wrapped in
// other errors, is then decoded to the value that the receiver has registered under the same name,
// so that errors.Is finds it there. The Registry keeps err. The error is nil, also for a repeated
// call. It matches ErrRegistered if the name or err is registered otherwise, and ErrUnsupported if
// name is empty, or err is nil or not comparable.
func (r *Registry) RegisterError(name string, err error) error {
	if name == "" || err == nil || !reflect.ValueOf(err).Comparable() {
		return errorf(ErrUnsupported, "%q cannot name an error of type %T", name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sentinels[name] == err {
		return nil
	}
	if r.sentinels[name] != nil || r.sentinelNames[err] != "" {
		return errorf(ErrRegistered, "the error %q or its name %q", err, name)
	}
	r.sentinels[name], r.sentinelNames[err] = err, name
	return nil
}

// Hook registers a custom encoding of type T: encode appends *v with the Write methods of the
// Encoder, and decode reads the same items in the same order and sets *v, which is zero before.
// Neither may keep the Encoder or the Decoder. If one returns an error, Encode or Decode returns it
// with the path to the value. Within a message, State and SetState hold data that calls of the
// functions share.
//
// If T is a pointer type, nil and repeated pointers need no care: encode is called once for each
// pointer of a message and never with nil. decode must set the pointer, which may point to an
// existing value.
//
// name identifies the type in messages, also in interfaces. A hook takes precedence over all other
// encodings of T. The Registry keeps both functions. The error of Hook matches ErrRegistered if T
// has a hook or if the name or T is registered otherwise, and ErrUnsupported if T is an interface,
// name is empty, or encode or decode is nil.
func Hook[T any](r *Registry, name string, encode func(e *Encoder, v *T) error, decode func(d *Decoder, v *T) error) error {
	t := reflect.TypeFor[T]()
	if name == "" || encode == nil || decode == nil || t.Kind() == reflect.Interface {
		return errorf(ErrUnsupported, "hook %q for %v: want a name, both functions and no interface", name, t)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.hooks[t]; ok {
		return errorf(ErrRegistered, "%v has a hook already", t)
	}
	if r.types[name] != t {
		if err := r.name(name, t); err != nil {
			return err
		}
	}
	r.hooks[t] = hook{
		name:   name,
		encode: func(e *Encoder, p unsafe.Pointer) error { return encode(e, (*T)(p)) },
		decode: func(d *Decoder, p unsafe.Pointer) error { return decode(d, (*T)(p)) },
	}
	clear(r.plans)
	r.generation.Add(1)
	return nil
}

// nameOf returns the registered name of t and true, with pointer false. If t is a pointer type
// without a name and the type it points to has one, nameOf returns that name, with pointer and ok
// true. If neither is registered, ok is false.
func (r *Registry) nameOf(t reflect.Type) (name string, pointer, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if name, ok = r.names[t]; ok || t.Kind() != reflect.Pointer {
		return name, false, ok
	}
	name, ok = r.names[t.Elem()]
	return name, true, ok
}

// typeOf returns the type registered under a name, or, if pointer is true, the type of pointers to
// it. If the name is not registered, the error matches ErrType.
func (r *Registry) typeOf(name []byte, pointer bool) (reflect.Type, error) {
	r.mu.RLock()
	t, ok := r.types[string(name)]
	r.mu.RUnlock()
	if !ok {
		return nil, errorf(ErrType, "the type %q is not registered", name)
	}
	if pointer {
		return reflect.PointerTo(t), nil
	}
	return t, nil
}

// sentinelName returns the name under which the error value err is registered, or "" if it is not
// registered. err must not be nil.
func (r *Registry) sentinelName(err error) string {
	if !reflect.ValueOf(err).Comparable() {
		return ""
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sentinelNames[err]
}

// sentinel returns the error value registered under a name and true, or nil and false if there is
// none.
func (r *Registry) sentinel(name string) (error, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	err, ok := r.sentinels[name]
	return err, ok
}

// plan returns the plan of t: the functions that encode and decode its values. The first call
// compiles the plan; later calls return the same one until a hook or a refusal is registered. If
// values of t cannot be encoded, the error matches ErrUnsupported. The caller must not hold r.mu.
func (r *Registry) plan(t reflect.Type) (*plan, error) {
	r.mu.RLock()
	p := r.plans[t]
	r.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.plans[t]; p != nil {
		return p, nil
	}
	c := compiler{hooks: r.hooks, refusals: r.refusals, known: r.plans, fresh: map[reflect.Type]*plan{}}
	p, err := c.plan(t)
	if err != nil {
		return nil, err
	}
	for t, p := range c.fresh {
		r.plans[t] = p
	}
	return p, nil
}

// lastPlan caches the plan of the type that an Encoder or Decoder used last, which is most often
// the next one too.
type lastPlan struct {
	typ        reflect.Type
	plan       *plan
	generation uint32
}

// of returns the plan of t, which has the functions that encode and decode values of t, as r.plan
// does. If t is also the type of the last call and r has not discarded its plans since then, of
// returns the plan of that call without locking r. The errors are those of Registry.plan.
func (l *lastPlan) of(r *Registry, t reflect.Type) (*plan, error) {
	generation := r.generation.Load()
	if t == l.typ && generation == l.generation {
		return l.plan, nil
	}
	p, err := r.plan(t)
	if err == nil {
		*l = lastPlan{t, p, generation}
	}
	return p, err
}

var errorType = reflect.TypeFor[error]()

// commonTypes returns, in a new slice, the types that every Registry has under their Go names.
func commonTypes() []reflect.Type {
	var types []reflect.Type
	for _, t := range []reflect.Type{
		reflect.TypeFor[bool](), reflect.TypeFor[string](),
		reflect.TypeFor[int](), reflect.TypeFor[int8](), reflect.TypeFor[int16](), reflect.TypeFor[int32](), reflect.TypeFor[int64](),
		reflect.TypeFor[uint](), reflect.TypeFor[uint8](), reflect.TypeFor[uint16](), reflect.TypeFor[uint32](), reflect.TypeFor[uint64](),
		reflect.TypeFor[float32](), reflect.TypeFor[float64](), reflect.TypeFor[complex64](), reflect.TypeFor[complex128](),
		reflect.TypeFor[time.Time](), reflect.TypeFor[time.Duration](),
		reflect.TypeFor[*tensor.Tensor](), reflect.TypeFor[*tensor.Sparse](), reflect.TypeFor[any](), errorType,
	} {
		types = append(types, reflect.SliceOf(t), reflect.MapOf(reflect.TypeFor[string](), t))
		if t != reflect.TypeFor[any]() {
			types = append(types, t)
		}
	}
	return append(types, reflect.TypeFor[map[any]any](), reflect.TypeFor[fs.PathError](), reflect.TypeFor[os.SyscallError](), reflect.TypeFor[net.AddrError]())
}

// commonErrors returns a new map from names to the error values that every Registry has.
func commonErrors() map[string]error {
	return map[string]error{
		"context.Canceled":         context.Canceled,
		"context.DeadlineExceeded": context.DeadlineExceeded,
		"errors.ErrUnsupported":    errors.ErrUnsupported,
		"fs.ErrClosed":             fs.ErrClosed,
		"fs.ErrExist":              fs.ErrExist,
		"fs.ErrInvalid":            fs.ErrInvalid,
		"fs.ErrNotExist":           fs.ErrNotExist,
		"fs.ErrPermission":         fs.ErrPermission,
		"io.EOF":                   io.EOF,
		"io.ErrClosedPipe":         io.ErrClosedPipe,
		"io.ErrNoProgress":         io.ErrNoProgress,
		"io.ErrShortBuffer":        io.ErrShortBuffer,
		"io.ErrShortWrite":         io.ErrShortWrite,
		"io.ErrUnexpectedEOF":      io.ErrUnexpectedEOF,
		"net.ErrClosed":            net.ErrClosed,
		"os.ErrDeadlineExceeded":   os.ErrDeadlineExceeded,
		"os.ErrProcessDone":        os.ErrProcessDone,
		"tensor.ErrNotContiguous":  tensor.ErrNotContiguous,
		"tensor.ErrOverlap":        tensor.ErrOverlap,
		"tensor.ErrReadOnly":       tensor.ErrReadOnly,
		"tensor.ErrReleased":       tensor.ErrReleased,
		"tensor.ErrUnaligned":      tensor.ErrUnaligned,
	}
}

// refusal makes encoding fail for types that implement the interface iface, with an error that
// wraps reason.
type refusal struct {
	iface  reflect.Type
	reason error
}

// Refuse makes encoding and decoding fail for all types that implement the interface I, and for
// structs whose pointers do. The error of Encode or Decode matches reason and ErrUnsupported and
// has the path to the value. A [Hook] for such a type takes precedence. A repeated call has no
// effect. The error of Refuse matches ErrRegistered if I is refused for another reason already, and
// ErrUnsupported if I is not an interface with methods or reason is nil.
func Refuse[I any](r *Registry, reason error) error {
	t := reflect.TypeFor[I]()
	if t.Kind() != reflect.Interface || t.NumMethod() == 0 || reason == nil {
		return errorf(ErrUnsupported, "refusal of %v: want an interface with methods, and a reason", t)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, known := range r.refusals {
		if known.iface != t {
			continue
		}
		if known.reason == reason {
			return nil
		}
		return errorf(ErrRegistered, "values of type %v are refused already: %v", t, known.reason)
	}
	r.refusals = append(r.refusals[:len(r.refusals):len(r.refusals)], refusal{t, reason})
	clear(r.plans)
	r.generation.Add(1)
	return nil
}

// checkRefused returns nil unless t, or a pointer to t if t is a struct type, implements the
// interface of one of the refusals. Otherwise it returns an *Error that matches ErrUnsupported and
// the reason of the first such refusal.
func checkRefused(all []refusal, t reflect.Type) error {
	for _, no := range all {
		if t.Implements(no.iface) || t.Kind() == reflect.Struct && reflect.PointerTo(t).Implements(no.iface) {
			return &Error{Err: fmt.Errorf("%w: %v: %w", ErrUnsupported, t, no.reason)}
		}
	}
	return nil
}

// unregisteredError returns the error for a value in an interface whose type t is not registered:
// an *Error that matches ErrUnsupported and the reason if t is refused, and otherwise one that
// matches ErrType. It is never nil. The caller must not hold r.mu.
func (r *Registry) unregisteredError(t reflect.Type) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if err := checkRefused(r.refusals, t); err != nil {
		return err
	}
	return errorf(ErrType, "the type is not registered")
}
