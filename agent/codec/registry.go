package codec

import (
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Registry knows what an application lets travel beyond plain data: the types
// that may come in interfaces, by name; errors that keep their identity; and
// encodings of the application's own. It also keeps the plans that it compiled,
// one for each type that was used.
//
// Both ends register the same names. All methods may be called from any
// goroutine; what is registered counts for the Encoders and Decoders that are
// reset afterwards.
type Registry struct {
	mu            sync.RWMutex
	types         map[string]reflect.Type
	names         map[reflect.Type]string
	sentinels     map[string]error
	sentinelNames map[error]string
	hooks         map[reflect.Type]hook
	refusals      []refusal
	plans         map[reflect.Type]*plan
	hooked        atomic.Uint32 // how often the plans were thrown away
}

// hook is an encoding of the application's own, for a type or its pointer.
type hook struct {
	name   string
	encode func(*Encoder, unsafe.Pointer) error
	decode func(*Decoder, unsafe.Pointer) error
}

// NewRegistry makes a Registry that knows the basic types, slices and maps of
// them with string keys, time.Time, time.Duration, tensors, error, and the
// usual errors of the standard library, as context.Canceled and io.EOF.
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

// Register lets values of the type of sample, and pointers to such values,
// travel in interfaces, where name tells what they are. An error of such a type
// keeps its fields and can be found with errors.As at the other end.
//
// The sample is a value or a pointer, and may be a nil pointer. The error matches
// ErrRegistered if the name or the type is taken. Whether the type can travel at
// all shows when the first value does.
func (r *Registry) Register(name string, sample any) error {
	t := reflect.TypeOf(sample)
	if t == nil || name == "" {
		return fault(ErrUnsupported, "register needs a name and a sample, not %q and %T", name, sample)
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

// name is called with the lock, or before anybody else knows r.
func (r *Registry) name(name string, t reflect.Type) error {
	if other, ok := r.types[name]; ok {
		return fault(ErrRegistered, "the name %q is that of %v", name, other)
	}
	if other, ok := r.names[t]; ok {
		return fault(ErrRegistered, "%v is %q already", t, other)
	}
	r.types[name], r.names[t] = t, name
	return nil
}

// RegisterError makes err, a value that code compares with as io.EOF, the same
// error at both ends: errors.Is finds it, also within other errors. The error
// matches ErrRegistered if the name or err is taken, ErrUnsupported if err cannot
// be compared.
func (r *Registry) RegisterError(name string, err error) error {
	if name == "" || err == nil || !reflect.ValueOf(err).Comparable() {
		return fault(ErrUnsupported, "%q cannot stand for an error of type %T", name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sentinels[name] == err {
		return nil
	}
	if r.sentinels[name] != nil || r.sentinelNames[err] != "" {
		return fault(ErrRegistered, "the error %q or its name %q", err, name)
	}
	r.sentinels[name], r.sentinelNames[err] = err, name
	return nil
}

// Hook gives values of type T an encoding of the application's own: encode
// writes with the methods of the Encoder, decode reads the same in the same
// order and sets *v, which is zero before. Both may refuse with an error, which
// the caller gets with the path to the value; a type that must not travel has a
// hook that always does. What they need to know of the message they find in its
// State.
//
// Where T is a pointer type the codec looks after nil and shared identity: encode
// gets each pointer of a message once and never nil, and decode chooses the
// pointer, which may be one that exists already.
//
// The name is that of the type on the wire, also in interfaces. A hook comes
// before all other encodings of T. The error matches ErrRegistered, or
// ErrUnsupported for an interface and where something is missing.
func Hook[T any](r *Registry, name string, encode func(e *Encoder, v *T) error, decode func(d *Decoder, v *T) error) error {
	t := reflect.TypeFor[T]()
	if name == "" || encode == nil || decode == nil || t.Kind() == reflect.Interface {
		return fault(ErrUnsupported, "hook %q for %v: want a name, both functions and no interface", name, t)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.hooks[t]; ok {
		return fault(ErrRegistered, "%v has a hook already", t)
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
	r.hooked.Add(1)
	return nil
}

// nameOf finds the name of a type or, with pointer set, that of what it points
// to.
func (r *Registry) nameOf(t reflect.Type) (name string, pointer, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if name, ok = r.names[t]; ok || t.Kind() != reflect.Pointer {
		return name, false, ok
	}
	name, ok = r.names[t.Elem()]
	return name, true, ok
}

// typeOf finds the type of a name.
func (r *Registry) typeOf(name []byte, pointer bool) (reflect.Type, error) {
	r.mu.RLock()
	t, ok := r.types[string(name)]
	r.mu.RUnlock()
	if !ok {
		return nil, fault(ErrType, "the type %q is not registered", name)
	}
	if pointer {
		return reflect.PointerTo(t), nil
	}
	return t, nil
}

// sentinelName is the name of an error that was registered as a value, or "".
func (r *Registry) sentinelName(err error) string {
	if !reflect.ValueOf(err).Comparable() {
		return ""
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sentinelNames[err]
}

// sentinel is the error of that name.
func (r *Registry) sentinel(name string) (error, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	err, ok := r.sentinels[name]
	return err, ok
}

// plan compiles the plan of a type when it is needed for the first time.
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

// lastPlan keeps the plan that was used last, which most often is the next too.
type lastPlan struct {
	typ    reflect.Type
	plan   *plan
	hooked uint32
}

// of is the plan of a type.
func (l *lastPlan) of(r *Registry, t reflect.Type) (*plan, error) {
	hooked := r.hooked.Load()
	if t == l.typ && hooked == l.hooked {
		return l.plan, nil
	}
	p, err := r.plan(t)
	if err == nil {
		*l = lastPlan{t, p, hooked}
	}
	return p, err
}
