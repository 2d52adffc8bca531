package pipe

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	connsOnly bool                         // from ListenConn: no pipes
	conns     atomic.Pointer[connListener] // nil unless Conns was called

	closing context.Context
	stop    context.CancelCauseFunc
	closed  sync.Once
	work    sync.WaitGroup
}

// Listen opens a listener, which the caller must close, at each of urls. A url has the form
// transport://address, and each transport may occur once; with several transports each peer can use
// the best one that it reaches. The system chooses the port of an address such as
// "uv://127.0.0.1:0". ctx bounds the call only, not the listener.
//
// A url whose transport this process cannot use, see [Context.Refused], is skipped. If no other url
// is left, or the policy requires that transport, the error matches ErrURL, as it does for an
// invalid url and for an empty list. Once c is closed the error matches ErrClosed. Otherwise the
// error is that of a transport. If the error is not nil, nothing stays open.
func (c *Context) Listen(ctx context.Context, urls ...string) (*Listener, error) {
	l, err := c.listen(ctx, urls, false)
	if err != nil {
		return nil, &Error{Op: "listen", Err: err}
	}
	return l, nil
}

// IsLocal reports whether only processes of this machine could reach a listener at url. It opens
// nothing. If the transport does not implement [transport.Local], which declares this, the result
// is false. The error matches ErrURL, and the result is false, if url has no scheme or its
// transport is unknown.
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

// listen opens a listener at each of urls, for pipes or, if connsOnly is set, for Conns only. The
// error is that of Listen, not wrapped.
func (c *Context) listen(ctx context.Context, urls []string, connsOnly bool) (*Listener, error) {
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
		connsOnly: connsOnly,
	}
	l.closing, l.stop = context.WithCancelCause(c.closing)
	var err error
	for _, url := range c.usableURLs(urls) {
		if err = l.open(ctx, url); err != nil {
			break
		}
	}
	if err == nil && connsOnly {
		l.Conns() // before the first connection is accepted
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

// usableURLs returns urls without those whose transport this process cannot use and the policy does
// not require. It logs a warning for each of these. If no other is left, it returns urls itself.
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

// open listens at url and adds the endpoint to l.endpoints, under the name of the transport. The
// error matches ErrURL if url is invalid, if its transport cannot be used, or if the listener has
// an endpoint of that transport already. Otherwise the error is that of the transport.
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

// start registers the listener with its context and starts one goroutine for each endpoint, which
// accepts connections. If the context is closing it returns ErrClosed. If the listener has no
// endpoint, the error matches ErrURL. After an error nothing is registered or started, and the
// endpoints stay open. It locks Context.mu.
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

// URLsAt returns the urls at which processes that reach this machine at one of hosts dial the
// listener, best transport first. hosts are numeric addresses of this machine. A wildcard address
// such as "uv://0.0.0.0:7000" is valid only here: it is replaced by one url for each of hosts that
// it includes. The error matches ErrURL if no such process can dial the address of one of the
// transports. URLsAt may be called after Close.
func (l *Listener) URLsAt(hosts ...string) ([]string, error) {
	var urls []string
	for _, e := range l.context.registry.transports {
		endpoint, ok := l.endpoints[e.Name]
		if !ok {
			continue
		}
		t, ok := e.Transport.(transport.AddressTranslator)
		if !ok {
			urls = append(urls, e.Name+"://"+endpoint.Addr())
			continue
		}
		before := len(urls)
		for _, host := range append(slices.Clone(hosts), "") { // with "" an address that is no wildcard
			addr, ok := t.AdvertiseAt(endpoint.Addr(), host)
			if url := e.Name + "://" + addr; ok && !slices.Contains(urls[before:], url) {
				urls = append(urls, url)
			}
		}
		if len(urls) == before {
			return nil, fmt.Errorf("%w: other machines cannot dial %s://%s", ErrURL, e.Name, endpoint.Addr())
		}
	}
	return urls, nil
}

// Accept waits for the next open pipe and returns it; the caller must close the pipe. If ctx ends
// first, the error wraps the cause of ctx. Once the listener is closed, the error matches
// ErrClosed. A handshake that fails does not end Accept; the listener logs and counts it.
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
// Accept fail with ErrClosed. Pipes that are being opened, and open pipes that Accept has not
// returned, are aborted; pipes that Accept has returned stay open. The error is always nil. A
// second call waits for the first, and has no other effect.
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
// starts a goroutine for each, which handles it. A connection beyond
// Limits.MaxHandshakesInProgress, which grows by the connections that pipes expect, is counted,
// logged and closed. After an error, such as a full descriptor table, acceptConnections logs it and
// retries after a pause, which doubles from 5 ms up to 1 s until a connection is accepted.
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
