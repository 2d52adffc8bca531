package pipe

import (
	"cmp"
	"context"
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
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/internal/quota"
	"github.com/tensorpipe-go/tensorpipe/internal/staging"
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

	// Kinds are the device kinds, in addition to the CPU, that copy bytes which the pipe
	// itself has received: small tensors to memory of a device, and tensors to host
	// memory that is valid on a stream.
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

	// NoEager makes payloads, and tensors in host memory with a named target, of more than
	// 64 KiB and at most 4 MiB wait until the peer has called Read, as larger ones do. If
	// neither end sets it, these are sent at once, or in order once the peer has read
	// enough of those before them, except through shared memory, by a
	// channel that needs no READY, to a peer that has not admitted the pipe, and before a
	// pipe has sent its first such part; in an answer these, and tensors without a named
	// target, may be inline instead, see Plan.Inline. A pipe then receives up to 8 MiB before Read is
	// called, which is part of Limits.ContextWindowBytes; bytes that are not read within
	// 100 ms are copied once more, to at most twice as much memory.
	NoEager bool

	// HandshakeTimeout bounds the opening of a pipe, and that of its bulk
	// connection, at both ends. Default 10 s.
	HandshakeTimeout time.Duration

	// CloseTimeout bounds how long Close waits until queued messages are sent, eager
	// parts are read and the peer has closed its end, and how long calls of Read continue after the
	// peer has closed its end. Default 5 s.
	CloseTimeout time.Duration

	// Events reports what happens to the pipes of the context. nil reports nothing.
	Events *Events

	// Logger receives events that no call returns: rejected connections, failed
	// handshakes, and unknown names in Policy. Default: nothing is logged.
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
	staging  *staging.Budget

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

	connSessions *budget.Budget // sessions of Conns that peers have opened

	mu        sync.Mutex
	listeners map[*Listener]struct{}
	pipes     map[*Pipe]struct{}
	sessions  map[*connSession]struct{}
	dialled   map[string]*dialledSession // by url, for DialConn
	work      sync.WaitGroup             // goroutines of listeners and of sessions, and calls of Dial and Listen
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

// New returns a context with no listeners and no pipes, which the caller must close. It returns an
// error that matches ErrOptions if o is invalid, its Policy requires a name that no entry has, or
// none of its transports can be used. The context keeps the callbacks, entries and other pointers
// in o.
func New(o Options) (*Context, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	log := cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if err := o.checkNames(log); err != nil {
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
		log:       log,
		registry:  r,
		listeners: map[*Listener]struct{}{},
		pipes:     map[*Pipe]struct{}{},
		sessions:  map[*connSession]struct{}{},
		dialled:   map[string]*dialledSession{},
	}
	c.blocks.New = func() any { return new(block) }
	c.incoming.New = func() any { return new(nativeIncoming) }
	c.coders = compress.New(runtime.GOMAXPROCS(0))
	c.inFlight = budget.New(c.limits.ContextBytesInFlight)
	c.staging = staging.New(c.limits.ContextBytesInFlight)
	c.windows = budget.New(c.limits.ContextWindowBytes)
	c.openingPipes = budget.New(c.limits.MaxHandshakesInProgress)
	c.connSessions = budget.New(c.limits.MaxConnSessions)
	c.unadmitted = quota.New(c.limits.UnadmittedBytes)
	c.closing, c.stop = context.WithCancelCause(context.Background())
	return c, nil
}

// Refused returns the transports and channels of the Options that no pipe of the context can use, and
// the devices of this end that a channel does not serve because they do not work, each with the
// reason. The result is a copy, which the caller may change.
func (c *Context) Refused() []Refusal {
	return append(c.registry.unusableDevices(), c.registry.refused...)
}

// Close closes all listeners and then, as [Pipe.Close] does, all pipes of the context, and the
// sessions of all Conns, concurrently. It returns after all of them have closed and running calls
// of Dial and Listen have ended. Bytes that were written to a Conn that is still open may be lost.
// Blocked and later calls of Dial, Listen, Accept and Next, and those on Conns, return errors that
// match ErrClosed. The result joins the errors of closing the pipes, and is nil if there are none.
func (c *Context) Close() error {
	c.stop(ErrClosed)
	c.mu.Lock()
	listeners, pipes, sessions := keys(c.listeners), keys(c.pipes), keys(c.sessions)
	c.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
	errs := make([]error, len(pipes))
	var closers sync.WaitGroup
	for i, p := range pipes {
		closers.Go(func() { errs[i] = p.Close() })
	}
	for _, s := range sessions {
		closers.Go(func() { s.close(ErrClosed) })
	}
	closers.Wait()
	c.work.Wait()
	return errtext.Join(errs...)
}

func keys[K comparable](m map[K]struct{}) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}

// splitURL splits a url of the form transport://address, and returns the entry of that transport
// and the address. It returns an error that matches ErrURL if the url has another form or the
// transport is not registered or not usable; the text then has the reason.
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

// handshakeContext returns a context derived from ctx that also ends after HandshakeTimeout, with
// the cause ErrHandshakeTimeout, and when c is closed, with the cause ErrClosed. The returned
// function ends the new context and releases its resources; the caller must call it.
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

// startWork registers a call of Dial or Listen and returns nil. Close then waits until that call
// has called c.work.Done. If c is closing, startWork registers nothing and returns ErrClosed.
func (c *Context) startWork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		return ErrClosed
	}
	c.work.Add(1)
	return nil
}

// register adds p to the pipes that Close closes, numbers p, counts it as opened and calls the
// event functions for that. After Close was called, register does none of this and returns
// ErrClosed. No goroutine of p may have been started.
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

// unregister removes p, which has ended, from the pipes that Close closes, counts p as closed and
// calls Events.Closed. It does nothing if p was not registered or was removed before.
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
