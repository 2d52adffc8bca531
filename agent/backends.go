package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Worker is what an application needs of a worker to be one: an *Agent, or something
// else that behaves as one.
type Worker interface {
	Self() WorkerInfo
	WorkerInfos() []WorkerInfo
	Invoke(ctx context.Context, to To, name string, args ...any) ([]any, error)
	Barrier(ctx context.Context, workers ...To) error
	Shutdown(ctx context.Context) error
	Close() error
}

// Backend makes a worker from options of its own type, as Join does from a Config. Of
// options of another type it says so by an error that matches ErrConfig; see OptionsOf.
type Backend func(ctx context.Context, options any) (Worker, error)

// Backends are the kinds of workers that an application may choose from, by name. The
// zero value has none; NewBackends returns one with "tensorpipe".
type Backends struct {
	mu     sync.Mutex
	byName map[string]Backend
}

// NewBackends has the backend "tensorpipe", which joins with a Config.
func NewBackends() *Backends {
	b := &Backends{}
	b.byName = map[string]Backend{"tensorpipe": func(ctx context.Context, options any) (Worker, error) {
		c, err := OptionsOf[Config]("tensorpipe", options)
		if err != nil {
			return nil, err
		}
		a, err := Join(ctx, c)
		if err != nil {
			return nil, err
		}
		return a, nil
	}}
	return b
}

// Register adds a backend. The error matches ErrConfig where the name is taken.
func (b *Backends) Register(name string, make Backend) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name == "" || make == nil {
		return fmt.Errorf("%w: a backend has a name and a constructor", ErrConfig)
	}
	if _, taken := b.byName[name]; taken {
		return fmt.Errorf("%w: RPC backend %s: already registered", ErrConfig, name)
	}
	if b.byName == nil {
		b.byName = map[string]Backend{}
	}
	b.byName[name] = make
	return nil
}

// Join makes a worker by the backend of that name; without a name options that are a
// Config are for "tensorpipe". The error matches ErrConfig where there is no such
// backend, or the options are not those of the backend.
func (b *Backends) Join(ctx context.Context, name string, options any) (Worker, error) {
	if _, ok := options.(Config); name == "" && ok {
		name = "tensorpipe"
	}
	if name == "" {
		return nil, fmt.Errorf("%w: Could not infer backend for options of type %T", ErrConfig, options)
	}
	b.mu.Lock()
	make, ok := b.byName[name]
	names := slices.Sorted(maps.Keys(b.byName))
	b.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("%w: Argument backend must be a member of BackendType, which %q is not: there are [%s]", ErrConfig, name, strings.Join(names, " "))
	}
	return make(ctx, options)
}

// OptionsOf is options as those of a backend, which are a T.
func OptionsOf[T any](backend string, options any) (T, error) {
	o, ok := options.(T)
	if !ok {
		return o, fmt.Errorf("%w: the options of backend %s must be %T, got %T", ErrConfig, backend, o, options)
	}
	return o, nil
}
