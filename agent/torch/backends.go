package torch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Worker is the part of *agent.Agent that an application uses, for workers of other backends.
type Worker interface {
	Self() agent.WorkerInfo
	WorkerInfos() []agent.WorkerInfo
	Invoke(ctx context.Context, to agent.To, name string, args ...any) ([]any, error)
	Barrier(ctx context.Context, workers ...agent.To) error
	Shutdown(ctx context.Context) error
	Close() error
}

// Backend makes a worker from options of its own type, as agent.Join does from an agent.Config. For
// options of another type the error matches agent.ErrConfig; see OptionsOf.
type Backend func(ctx context.Context, options any) (Worker, error)

// Backends is a table of backends by name. The zero value is empty; NewBackends returns a table
// with "tensorpipe". It may be used concurrently.
type Backends struct {
	mu     sync.Mutex
	byName map[string]Backend
}

// NewBackends returns a new table with one backend: "tensorpipe", which takes an agent.Config as
// its options and calls agent.Join.
func NewBackends() *Backends {
	b := &Backends{}
	b.byName = map[string]Backend{"tensorpipe": func(ctx context.Context, options any) (Worker, error) {
		c, err := OptionsOf[agent.Config]("tensorpipe", options)
		if err != nil {
			return nil, err
		}
		a, err := agent.Join(ctx, c)
		if err != nil {
			return nil, err
		}
		return a, nil
	}}
	return b
}

// Register adds make to the table as the backend with that name, and returns nil. The error matches
// agent.ErrConfig if the name is in use or empty, or if make is nil; the table does not change
// then.
func (b *Backends) Register(name string, make Backend) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name == "" || make == nil {
		return fmt.Errorf("%w: a backend has a name and a constructor", agent.ErrConfig)
	}
	if _, taken := b.byName[name]; taken {
		return fmt.Errorf("%w: RPC backend %s: already registered", agent.ErrConfig, name)
	}
	if b.byName == nil {
		b.byName = map[string]Backend{}
	}
	b.byName[name] = make
	return nil
}

// Join calls the backend that has this name with ctx and options, and returns the worker and the
// error that the backend returns. If name is empty and options is an agent.Config, the backend is
// "tensorpipe". If name is empty otherwise, or the table has no such backend, Join returns nil and
// an error that matches agent.ErrConfig. A backend returns such an error if options does not have
// the type that it expects.
func (b *Backends) Join(ctx context.Context, name string, options any) (Worker, error) {
	if _, ok := options.(agent.Config); name == "" && ok {
		name = "tensorpipe"
	}
	if name == "" {
		return nil, fmt.Errorf("%w: Could not infer backend for options of type %T", agent.ErrConfig, options)
	}
	b.mu.Lock()
	make, ok := b.byName[name]
	names := slices.Sorted(maps.Keys(b.byName))
	b.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("%w: Argument backend must be a member of BackendType, which %q is not: there are [%s]", agent.ErrConfig, name, strings.Join(names, " "))
	}
	return make(ctx, options)
}

// OptionsOf returns options as a T. If options has another type, it returns the zero value and an
// error that matches agent.ErrConfig and names the backend and both types.
func OptionsOf[T any](backend string, options any) (T, error) {
	o, ok := options.(T)
	if !ok {
		return o, fmt.Errorf("%w: the options of backend %s must be %T, got %T", agent.ErrConfig, backend, o, options)
	}
	return o, nil
}
