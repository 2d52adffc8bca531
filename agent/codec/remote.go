package codec

import "reflect"

// RemoteError stands for an error of a type that this end does not know. It
// reads like the original, and errors.Is and errors.As find in it what the
// original wrapped, as far as that is known here.
type RemoteError struct {
	Type string // the type of the original, as in "*mypkg.Error"
	Text string // what its Error method said

	wrapped []error
}

func (e *RemoteError) Error() string { return e.Text }

// Unwrap is what the original wrapped, and the registered errors that it said it
// is.
func (e *RemoteError) Unwrap() []error { return e.wrapped }

// opaque describes an error by text.
func (r *Registry) opaque(err error) *RemoteError {
	if remote, ok := err.(*RemoteError); ok && remote != nil {
		return remote
	}
	o := &RemoteError{Type: reflect.TypeOf(err).String(), Text: err.Error()}
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		if inner := err.Unwrap(); inner != nil {
			o.wrapped = []error{inner}
		}
	case interface{ Unwrap() []error }:
		for _, inner := range err.Unwrap() {
			if inner != nil {
				o.wrapped = append(o.wrapped, inner)
			}
		}
	}
	if is, ok := err.(interface{ Is(error) bool }); ok {
		o.wrapped = append(o.wrapped, r.claimed(is)...)
	}
	return o
}

// claimed lists the registered errors that an error says it is, as the numbers
// of the operating system do.
func (r *Registry) claimed(err interface{ Is(error) bool }) (found []error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, sentinel := range r.sentinels {
		if err.Is(sentinel) {
			found = append(found, sentinel)
		}
	}
	return found
}
