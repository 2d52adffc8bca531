package codec

import (
	"fmt"
	"reflect"
)

// refusal is a reason for which types that implement an interface do not travel.
type refusal struct {
	iface  reflect.Type
	reason error
}

// Refuse says of all types that implement the interface I that they cannot travel, and
// why: what is tried with them fails with an error that matches reason and
// ErrUnsupported, and has the path to the value. A [Hook] for one of them goes before.
// The same again does nothing; another reason for the same interface is
// ErrRegistered.
func Refuse[I any](r *Registry, reason error) error {
	t := reflect.TypeFor[I]()
	if t.Kind() != reflect.Interface || t.NumMethod() == 0 || reason == nil {
		return fault(ErrUnsupported, "refusal of %v: want an interface with methods, and a reason", t)
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
		return fault(ErrRegistered, "values that are %v are refused: %v", t, known.reason)
	}
	r.refusals = append(r.refusals[:len(r.refusals):len(r.refusals)], refusal{t, reason})
	clear(r.plans)
	r.hooked.Add(1)
	return nil
}

// refusalOf is the error for a type that is not to travel, by value or by pointer.
func refusalOf(all []refusal, t reflect.Type) error {
	for _, no := range all {
		if t.Implements(no.iface) || t.Kind() == reflect.Struct && reflect.PointerTo(t).Implements(no.iface) {
			return &Error{Err: fmt.Errorf("%w: %v: %w", ErrUnsupported, t, no.reason)}
		}
	}
	return nil
}

// stranger is the error for a type in an interface that is not registered.
func (r *Registry) stranger(t reflect.Type) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if err := refusalOf(r.refusals, t); err != nil {
		return err
	}
	return fault(ErrType, "the type is not registered")
}
