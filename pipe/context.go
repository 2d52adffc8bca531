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

	// Transports and Channels are those that pipes may use. Names and priorities
	// must be unique. Entries that do not work on this machine are not used; the
	// Plan of each pipe has the reason.
	Transports []TransportEntry
	Channels   []ChannelEntry

	// Kinds are the device kinds, in addition to the CPU, on which Discard may
	// allocate memory for tensors that no channel delivers to the CPU.
	Kinds []device.Kind

	Policy Policy
	Limits Limits

	// Dialect is the dialect of pipes: DialectAuto, the default, selects the best
	// one that the peer supports; DialectCompatible and DialectNative require one.
	// If the native dialect is required and not possible, opening a pipe fails with
	// ErrDialect.
	Dialect Dialect

	// Checksum adds a CRC32C to everything that this end sends in the native
	// dialect, except tensors that a channel does not send over a connection. The
	// receiver always verifies a checksum; if it does not match the pipe fails with
	// ErrChecksum.
	Checksum bool

	// HandshakeTimeout bounds the opening of a pipe, and that of its bulk
	// connection, at both ends. Default 10 s.
	HandshakeTimeout time.Duration

	// CloseTimeout bounds how long Close waits until queued messages are sent and
	// the peer has closed its end, and how long calls of Read continue after the
	// peer has closed its end. Default 5 s.
	CloseTimeout time.Duration

	// Events reports what happens to the pipes of the context. nil reports nothing.
	Events *Events

	// Logger receives events that no call returns: rejected connections and failed
	// handshakes. Default: nothing is logged.
	Logger *slog.Logger
}

// Context opens and accepts pipes. The pipes of a context share its transports, channels,
// limits and counters, and nothing else: a failure of one does not affect the others. All
// methods may be called concurrently.
type Context struct {
	opts     Options
	limits   Limits
	log      *slog.Logger
	registry *registry
	inFlight *budget.Budget
	windows  *budget.Budget // of the sessions

	// Accepted connections whose first packet was not read yet, connections that pipes
	// being opened expect, and slots for pipes that are being opened. Each expected
	// connection allows one more unidentified one, so that it is never rejected.
	unidentified, expectedConns atomic.Int64
	openingPipes                *budget.Budget
	unadmitted                  *quota.Pool // nil without Limits.UnadmittedBytes

	blocks, incoming sync.Pool // reused memory of native pipes

	counters counters
	coders   *compress.Coders

	hideMarker    bool // for tests: behave like a C++ end
	noCompression bool // for tests: behave like an end without compression

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

// New returns a context without listeners and pipes, which the caller must close. Errors match
// ErrOptions.
func New(o Options) (*Context, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	r, err := newRegistry(o.Transports, o.Channels, o.Policy)
	if err != nil {
		return nil, err
	}
	if len(r.transports) == 0 {
		return nil, fmt.Errorf("%w (refused: %v)", errNoTransports, r.refused)
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
	c.openingPipes = budget.New(c.limits.MaxHandshakesInProgress)
	c.unadmitted = quota.New(c.limits.UnadmittedBytes)
	c.closing, c.stop = context.WithCancelCause(context.Background())
	return c, nil
}

// Refused returns the transports and channels that no pipe of the context can use, with the
// reasons. The caller may change the result.
func (c *Context) Refused() []Refusal { return append([]Refusal(nil), c.registry.refused...) }

// Close closes all listeners and, as [Pipe.Close] does, all pipes. It returns once all goroutines
// of the context have ended. Blocked calls, and all later ones, return ErrClosed. The error joins
// those of the pipes.
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

// splitURL splits a url of the form transport://address into the entry of a usable transport and
// the address. Errors match ErrURL; the text for a refused transport has the reason.
func (c *Context) splitURL(url string) (TransportEntry, string, error) {
	name, addr, ok := strings.Cut(url, "://")
	if !ok || name == "" {
		return TransportEntry{}, "", fmt.Errorf("%w: %q has no scheme (want transport://address)", ErrURL, sanitize(url))
	}
	e, known := c.registry.transport(name)
	if known {
		return e, addr, nil
	}
	for _, r := range c.registry.refused {
		if r.Kind == CandidateTransport && r.Name == name {
			return e, "", fmt.Errorf("%w: transport %s is refused: %s", ErrURL, name, r.Reason)
		}
	}
	return e, "", fmt.Errorf("%w: no transport %q is registered", ErrURL, sanitize(name))
}

// handshakeContext returns a copy of ctx that also ends after HandshakeTimeout, with the cause
// ErrHandshakeTimeout, and when c is closed, with the cause ErrClosed. The caller must call the
// returned function to release its resources.
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

// startWork registers a call of Dial or Listen, so that Close waits until it calls c.work.Done. Once c
// is closing startWork registers nothing and returns ErrClosed.
func (c *Context) startWork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		return ErrClosed
	}
	c.work.Add(1)
	return nil
}

// register counts and reports p as opened and adds it to the pipes that Close closes. Once c is
// closing it adds nothing and returns ErrClosed. No goroutine of p may have been started.
func (c *Context) register(p *Pipe) error {
	c.mu.Lock()
	if c.closing.Err() != nil {
		c.mu.Unlock()
		return ErrClosed
	}
	c.pipes[p] = struct{}{}
	p.id = PipeID{Number: c.counters.pipesOpened.Add(1), Peer: p.peerName()}
	c.mu.Unlock()
	p.reportOpened()
	return nil
}

// unregister removes p, which has ended, from the pipes that Close closes, and counts and reports it
// as closed. It does nothing if p was not registered.
func (c *Context) unregister(p *Pipe) {
	c.mu.Lock()
	_, adopted := c.pipes[p]
	if adopted {
		delete(c.pipes, p)
		c.counters.pipesClosed.Add(1)
	}
	c.mu.Unlock()
	if e := p.events; adopted && e != nil && e.Closed != nil {
		e.Closed(ClosedInfo{p.id, p.Err()})
	}
}
