package agent

import (
	"context"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
)

// Extension is a subsystem that is built on an agent and shares its life, such as remote
// references. An extension serves one agent. Its methods are called one after the other, in this
// order: Configure, Start, Drain if the agent is shut down, and Close. Dump and Metrics may be
// called between Start and Close, concurrently.
type Extension interface {
	// Key returns the value by which Agent.Extension finds the extension. It must be comparable
	// and not nil, and different for each extension of an agent.
	Key() any

	// Configure adds to c what the extension needs: functions, handlers, interceptors, types. Join
	// calls it for the extensions in their order, before it opens anything. c has its defaults, and
	// is a copy whose Funcs, Handlers and Interceptors may be changed; the Registry is that of the
	// application. If Configure fails, so does Join, with the same error.
	Configure(c *Config) error

	// Start is called, for the extensions in their order, when the worker has joined its group and
	// before it handles the first message. It must not block, and must not make calls. If Start
	// fails, so does Join, with the same error, and all extensions that were started are closed.
	Start(a *Agent) error

	// Drain is called by Shutdown, for the extensions in the opposite order, when this worker has
	// no pending calls and runs no handlers; in a static group, when no worker has and runs any.
	// Messages are still sent and received: calls that Drain makes may have effects on workers that
	// drain as well. Calls with WithBackground do not disturb workers that are not so far. The
	// error is that of Shutdown, which goes on nevertheless.
	Drain(ctx context.Context) error

	// Close is called for each extension that was started, in the opposite order, also if there was
	// no Shutdown. All pipes are closed then, so that calls fail. Close waits for the goroutines of
	// the extension, and for no function of the application. The error is that of Agent.Close.
	Close() error

	// Dump writes the state of the extension to w as text, for Agent.Dump.
	Dump(w io.Writer) error

	// Metrics returns the numbers of the extension by name, in a new map, for Agent.Extensions.
	Metrics() map[string]int64
}

// Extension returns the extension of Config.Extensions with that key, nil if there is none.
func (a *Agent) Extension(key any) Extension {
	for _, e := range a.extensions {
		if e.Key() == key {
			return e
		}
	}
	return nil
}

// Extensions returns the extensions of the agent in their order, in a new slice.
func (a *Agent) Extensions() []Extension { return slices.Clone(a.extensions) }

// configureExtensions calls Configure of the extensions in c. It replaces the slices and the map
// that they may change by copies. The error matches ErrConfig for an extension that is nil, or whose
// key is nil, cannot be compared or belongs to an earlier one; or it is that of Configure.
func (c *Config) configureExtensions() error {
	if len(c.Extensions) == 0 {
		return nil
	}
	c.Funcs, c.Interceptors = slices.Clone(c.Funcs), slices.Clone(c.Interceptors)
	if c.Handlers = maps.Clone(c.Handlers); c.Handlers == nil {
		c.Handlers = map[string]Handler{}
	}
	keys := map[any]bool{}
	for _, e := range slices.Clone(c.Extensions) {
		if e == nil {
			return fmt.Errorf("%w: an extension is nil", ErrConfig)
		}
		key := e.Key()
		if key == nil || !reflect.ValueOf(key).Comparable() {
			return fmt.Errorf("%w: the key of the extension %T is %v, which cannot be compared", ErrConfig, e, key)
		}
		if keys[key] {
			return fmt.Errorf("%w: two extensions have the key %v", ErrConfig, key)
		}
		keys[key] = true
		if err := e.Configure(c); err != nil {
			return fmt.Errorf("extension %T: %w", e, err)
		}
	}
	return nil
}

// startExtensions calls Start of the extensions, until one fails. The error is that of Start.
func (a *Agent) startExtensions(all []Extension) error {
	for _, e := range all {
		a.extensions = append(a.extensions, e) // Start may look for itself
		if err := e.Start(a); err != nil {
			a.extensions = a.extensions[:len(a.extensions)-1]
			return fmt.Errorf("extension %T: %w", e, err)
		}
	}
	return nil
}

// drainExtensions calls Drain of all extensions, the last one first, and returns their errors
// joined.
func (a *Agent) drainExtensions(ctx context.Context) (err error) {
	for _, e := range slices.Backward(a.extensions) {
		err = errtext.Join(err, e.Drain(ctx))
	}
	return err
}

// closeExtensions calls Close of all extensions that were started, the last one first, and returns
// their errors joined.
func (a *Agent) closeExtensions() (err error) {
	for _, e := range slices.Backward(a.extensions) {
		err = errtext.Join(err, e.Close())
	}
	return err
}
