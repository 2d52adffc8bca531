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

// NewBackends returns a table with the backend "tensorpipe", which joins with an agent.Config.
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

// Register adds a backend under a name. The error matches agent.ErrConfig if the name is in use
// or empty, or if make is nil.
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

// Join makes a worker by the backend with this name, which gets ctx and options. An empty name
// selects "tensorpipe" if options is an agent.Config. The error matches agent.ErrConfig if there
// is no such backend or options has another type than the backend expects; otherwise it is that
// of the backend.
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

// OptionsOf returns options as a T. The error matches agent.ErrConfig if options has another
// type, and names the backend.
func OptionsOf[T any](backend string, options any) (T, error) {
	o, ok := options.(T)
	if !ok {
		return o, fmt.Errorf("%w: the options of backend %s must be %T, got %T", agent.ErrConfig, backend, o, options)
	}
	return o, nil
}
