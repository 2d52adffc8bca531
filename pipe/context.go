package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/quota"
)

// Options configure a Context.
type Options struct {
	// Name is sent to peers, for their errors and logs.
	Name string

	// Transports and Channels are what pipes may use. Names and priorities
	// must be unique. Entries that do not work on this machine are left out;
	// the Plan of each pipe says why.
	Transports []TransportEntry
	Channels   []ChannelEntry

	// Kinds are the device kinds, beside the CPU, on which Discard may
	// allocate memory for tensors that no channel delivers to the CPU.
	Kinds []device.Kind

	Policy Policy
	Limits Limits

	// Dialect is what pipes may speak: DialectAuto, the default, is the best
	// that the peer knows; DialectCompatible and DialectNative are one alone. An
	// end that requires the native dialect opens no pipe without it: ErrDialect.
	Dialect string

	// Checksum adds a CRC32C to all that this end sends in the native dialect,
	// but for tensors whose channel does not move them over a connection. An
	// end always checks what comes with one; if it is wrong the pipe fails with
	// ErrChecksum.
	Checksum bool

	// HandshakeTimeout bounds the opening of a pipe, and of its bulk connection,
	// at both ends. Default 10 s.
	HandshakeTimeout time.Duration

	// CloseTimeout bounds how long Close waits for writes to leave and for
	// the peer to close its end, and how long reads under way go on when the
	// peer has closed and gone. Default 5 s.
	CloseTimeout time.Duration

	// Logger gets what no call can return: refused connections, failed
	// handshakes. Default: nothing is logged.
	Logger *slog.Logger
}

// Context makes pipes. All pipes of a context share its transports, channels,
// limits and counters, and nothing else: a fault of one leaves the others
// alone. All methods may be called concurrently.
type Context struct {
	opts     Options
	limits   Limits
	log      *slog.Logger
	registry *registry
	inFlight *budget.Budget
	windows  *budget.Budget // of the sessions
	// Accepted connections that have not said what they are for, pipes that are
	// being opened, and connections that those still expect. Each of the latter
	// makes room for one more stranger: a pipe must not lack a place for its own.
	strangers, expected atomic.Int64
	openings            *budget.Budget
	unadmitted          *quota.Pool // nil without Limits.UnadmittedBytes

	blocks, incoming sync.Pool // memory of native pipes, to be used again

	counters counters
	coders   *compress.Coders

	unmarked     bool // tests: pass for an end that is not ours
	uncompressed bool // tests: pass for one that knows no compression

	closing context.Context // ends when Close is called
	stop    context.CancelCauseFunc

	mu        sync.Mutex
	listeners map[*Listener]struct{}
	pipes     map[*Pipe]struct{}
	work      sync.WaitGroup // goroutines of listeners, and calls of Dial and Listen
}

func (o Options) check() error {
	if o.HandshakeTimeout < 0 || o.CloseTimeout < 0 {
		return fmt.Errorf("%w: HandshakeTimeout is %v, CloseTimeout %v", ErrOptions, o.HandshakeTimeout, o.CloseTimeout)
	}
	switch o.Dialect {
	case "", DialectCompatible, DialectNative, DialectAuto:
	default:
		return fmt.Errorf("%w: Dialect is %q", ErrOptions, o.Dialect)
	}
	return o.Limits.check()
}

// New makes a context. It opens nothing. Errors match ErrOptions.
func New(o Options) (*Context, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	r, err := newRegistry(o.Transports, o.Channels, o.Policy)
	if err != nil {
		return nil, err
	}
	if len(r.transports) == 0 {
		return nil, fmt.Errorf("%w (refused: %v)", errNoEntries, r.refused)
	}
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, 10*time.Second)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, 5*time.Second)
	c := &Context{
		opts:      o,
		limits:    o.Limits.withDefaults(),
		log:       cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
		registry:  r,
		listeners: map[*Listener]struct{}{},
		pipes:     map[*Pipe]struct{}{},
	}
	c.blocks.New = func() any { return new(block) }
	c.incoming.New = func() any { return new(nativeIncoming) }
	c.coders = compress.New(runtime.GOMAXPROCS(0))
	c.inFlight = budget.New(c.limits.ContextBytesInFlight)
	c.windows = budget.New(c.limits.ContextWindowBytes)
	c.openings = budget.New(c.limits.HandshakesInProgress)
	c.unadmitted = quota.New(c.limits.UnadmittedBytes)
	c.closing, c.stop = context.WithCancelCause(context.Background())
	return c, nil
}

// Refused lists the transports and channels that no pipe of the context will
// use, and why.
func (c *Context) Refused() []Refusal { return append([]Refusal(nil), c.registry.refused...) }

// Close closes all listeners and pipes gracefully, as [Pipe.Close] does, and
// waits until nothing of the context runs any more. Calls under way return
// ErrClosed. The error joins those of the pipes.
func (c *Context) Close() error {
	c.stop(ErrClosed)
	c.mu.Lock()
	listeners, pipes := keys(c.listeners), keys(c.pipes)
	c.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
	errs := make([]error, len(pipes))
	var closers sync.WaitGroup
	for i, p := range pipes {
		closers.Go(func() { errs[i] = p.Close() })
	}
	closers.Wait()
	c.work.Wait()
	return errors.Join(errs...)
}

func keys[K comparable](m map[K]struct{}) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}

// splitURL cuts transport://address and finds the transport.
func (c *Context) splitURL(url string) (TransportEntry, string, error) {
	name, addr, ok := strings.Cut(url, "://")
	if !ok || name == "" {
		return TransportEntry{}, "", fmt.Errorf("%w: %q has no scheme (want transport://address)", ErrURL, clip(url))
	}
	e, known := c.registry.transport(name)
	if known {
		return e, addr, nil
	}
	for _, r := range c.registry.refused {
		if r.What == "transport" && r.Name == name {
			return e, "", fmt.Errorf("%w: transport %s is refused: %s", ErrURL, name, r.Reason)
		}
	}
	return e, "", fmt.Errorf("%w: no transport %q is registered", ErrURL, clip(name))
}

// handshakeContext bounds a handshake by ctx, the option and Close.
func (c *Context) handshakeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.HandshakeTimeout, ErrHandshakeTimeout)
	ctx, abort := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.closing, func() { abort(ErrClosed) })
	return ctx, func() {
		stop()
		abort(nil)
		cancel()
	}
}

// admitStranger takes a place for an accepted connection, if there is one.
func (c *Context) admitStranger() bool {
	if c.strangers.Add(1) <= int64(c.limits.HandshakesInProgress)+c.expected.Load() {
		return true
	}
	c.strangers.Add(-1)
	return false
}

// begin counts a call of Dial or Listen, for which Close waits; it refuses once the
// context is closing.
func (c *Context) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		return ErrClosed
	}
	c.work.Add(1)
	return nil
}

// adopt takes a new pipe into the context's care; it refuses once the context
// is closing.
func (c *Context) adopt(p *Pipe) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		return ErrClosed
	}
	c.pipes[p] = struct{}{}
	c.counters.pipesOpened.Add(1)
	return nil
}

func (c *Context) forget(p *Pipe) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, adopted := c.pipes[p]; adopted {
		delete(c.pipes, p)
		c.counters.pipesClosed.Add(1)
	}
}
