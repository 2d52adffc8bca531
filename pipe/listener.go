package pipe

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Listener accepts pipes on one or several transports. All methods may be called
// concurrently.
type Listener struct {
	context   *Context
	endpoints map[string]transport.Listener // by transport name
	matcher   *connMatcher
	accepted  chan *Pipe

	closing context.Context
	stop    context.CancelCauseFunc
	closed  sync.Once
	work    sync.WaitGroup
}

// Listen opens a listener on each url; with several transports each peer can use the best
// one that it reaches. The system chooses the port of an address such as
// "uv://127.0.0.1:0". A url whose transport this process cannot use, see
// [Context.Refused], is skipped; if no other is left, or the policy requires it, the error
// matches ErrURL. ctx bounds the call only. Once the context is closed the error matches
// ErrClosed.
func (c *Context) Listen(ctx context.Context, urls ...string) (*Listener, error) {
	l, err := c.listen(ctx, urls)
	if err != nil {
		return nil, &Error{Op: "listen", Err: err}
	}
	return l, nil
}

// IsLocal reports whether only processes of this machine can reach a listener at url, without
// opening one. It returns false unless the transport declares that, see [transport.Local]. Errors
// match ErrURL.
func (c *Context) IsLocal(url string) (bool, error) {
	name, addr, found := strings.Cut(url, "://")
	e, known := find(c.opts.Transports, func(e TransportEntry) bool { return e.Name == name })
	if !found || !known {
		_, _, err := c.splitURL(url)
		return false, &Error{Op: "listen", Err: err}
	}
	l, ok := e.Transport.(transport.Local)
	return ok && l.IsLocal(addr), nil
}

func (c *Context) listen(ctx context.Context, urls []string) (*Listener, error) {
	if err := c.startWork(); err != nil {
		return nil, err
	}
	defer c.work.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	l := &Listener{
		context:   c,
		endpoints: map[string]transport.Listener{},
		matcher:   &connMatcher{waiting: map[uint64]*pendingConn{}, count: &c.expectedConns, newID: randomID},
		accepted:  make(chan *Pipe, c.limits.MaxAcceptBacklog),
	}
	l.closing, l.stop = context.WithCancelCause(c.closing)
	var err error
	for _, url := range c.usableURLs(urls) {
		if err = l.open(ctx, url); err != nil {
			break
		}
	}
	if err == nil {
		err = l.start()
	}
	if err == nil {
		return l, nil
	}
	l.closeEndpoints()
	l.stop(ErrClosed)
	if c.closing.Err() != nil { // also if that made an endpoint fail
		err = ErrClosed
	}
	return nil, err
}

// usableURLs returns urls without those whose transport is refused and not required by the policy. It
// logs each url that it leaves out. If none would be left it returns all of them.
func (c *Context) usableURLs(urls []string) []string {
	refused := c.registry.reasonsByName(CandidateTransport, nil)
	var left []string
	for _, url := range urls {
		name, _, _ := strings.Cut(url, "://")
		reason, without := refused[name]
		if without && !slices.Contains(c.opts.Policy.Transports.Require, name) {
			c.log.Warn("not listened on", "url", sanitize(url), "error", reason)
			continue
		}
		left = append(left, url)
	}
	if len(left) == 0 {
		return urls
	}
	return left
}

// open opens an endpoint at url and adds it to the listener's endpoints. Errors match ErrURL, also
// for a second url of one transport, or are those of the transport.
func (l *Listener) open(ctx context.Context, url string) error {
	entry, addr, err := l.context.splitURL(url)
	if err != nil {
		return err
	}
	if l.endpoints[entry.Name] != nil {
		return fmt.Errorf("%w: %q is a second one for transport %s", ErrURL, sanitize(url), entry.Name)
	}
	endpoint, err := entry.Transport.Listen(ctx, addr)
	if err != nil {
		return err
	}
	l.endpoints[entry.Name] = endpoint
	return nil
}

// start registers the listener with its context and starts to accept connections. It returns
// ErrClosed if the context is closing, and an error that matches ErrURL if the listener has no
// endpoint.
func (l *Listener) start() error {
	c := l.context
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		return ErrClosed
	}
	if len(l.endpoints) == 0 {
		return fmt.Errorf("%w: a listener needs at least one", ErrURL)
	}
	c.listeners[l] = struct{}{}
	for name := range l.endpoints {
		l.work.Go(func() { l.acceptConnections(name) })
	}
	c.work.Go(l.work.Wait)
	return nil
}

// URLs returns the urls at which the listener can be dialled, best transport first. It may
// be called after Close.
func (l *Listener) URLs() []string {
	var urls []string
	for _, e := range l.context.registry.transports {
		if endpoint, ok := l.endpoints[e.Name]; ok {
			urls = append(urls, e.Name+"://"+endpoint.Addr())
		}
	}
	return urls
}

// Accept waits for the next open pipe, which the caller must close. If ctx ends first the error
// wraps the cause of ctx; once the listener is closed it matches ErrClosed. Handshakes that fail
// are not returned but logged and counted.
func (l *Listener) Accept(ctx context.Context) (*Pipe, error) {
	select {
	case <-l.closing.Done():
		return nil, &Error{Op: "accept", Err: ErrClosed}
	default:
	}
	select {
	case p := <-l.accepted:
		return p, nil
	case <-ctx.Done():
		return nil, &Error{Op: "accept", Err: context.Cause(ctx)}
	case <-l.closing.Done():
		return nil, &Error{Op: "accept", Err: ErrClosed}
	}
}

// Close stops listening and waits until the goroutines of the listener have ended. Blocked calls of
// Accept return ErrClosed. Pipes that are being opened or were not accepted are closed; accepted
// ones stay open. The error is always nil.
func (l *Listener) Close() error {
	l.closed.Do(func() {
		l.stop(ErrClosed)
		l.closeEndpoints()
		l.work.Wait()
		for done := false; !done; {
			select {
			case p := <-l.accepted:
				p.Abort(ErrClosed)
			default:
				done = true
			}
		}
		l.context.mu.Lock()
		delete(l.context.listeners, l)
		l.context.mu.Unlock()
	})
	return nil
}

func (l *Listener) closeEndpoints() {
	for _, endpoint := range l.endpoints {
		endpoint.Close()
	}
}

// acceptConnections accepts the connections of one transport until the listener is closed, and
// handles each on a goroutine of its own. Connections for which there is no slot are closed. After
// an error, such as a full descriptor table, it retries with growing pauses.
func (l *Listener) acceptConnections(transportName string) {
	const firstPause, lastPause = 5 * time.Millisecond, time.Second
	pause := firstPause
	for {
		conn, err := l.endpoints[transportName].Accept(l.closing)
		if l.closing.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return
		}
		if err != nil {
			l.context.log.Warn("accept failed", "transport", transportName, "error", err, "retry_in", pause)
			wait(l.closing.Done(), pause)
			pause = min(2*pause, lastPause)
			continue
		}
		pause = firstPause
		c := l.context
		if c.unidentified.Add(1) > int64(c.limits.MaxHandshakesInProgress)+c.expectedConns.Load() {
			c.unidentified.Add(-1)
			l.countRejected(conn) // before the peer can see that the connection has ended
			conn.Close()
			continue
		}
		l.work.Go(func() { l.handleConn(transportName, conn) })
	}
}

// countRejected counts and logs the rejection of conn, which happens because too many handshakes
// are in progress. The caller closes conn.
func (l *Listener) countRejected(conn transport.Conn) {
	limit := uint64(l.context.limits.MaxHandshakesInProgress)
	l.context.counters.connectionsRefused.Add(1)
	l.context.log.Warn("connection refused", "peer", conn.RemoteAddr(), "error", limitError("handshakes in progress", limit+1, limit))
}
