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

// Listener accepts pipes on one or several transports. All methods may be
// called concurrently.
type Listener struct {
	context   *Context
	endpoints map[string]transport.Listener // by transport name
	meet      *rendezvous
	accepted  chan *Pipe

	closing context.Context
	stop    context.CancelCauseFunc
	closed  sync.Once
	work    sync.WaitGroup
}

// Listen opens a listener on each url; a context that listens on several
// transports lets each peer use the best one it can reach. An address may
// leave the port to the system, as in "uv://127.0.0.1:0". A url whose transport
// this process cannot use, see [Context.Refused], is passed over, unless no other is
// left or the policy requires it: then the error matches ErrURL. ctx bounds the
// call only. Once the context is closed the error matches ErrClosed.
func (c *Context) Listen(ctx context.Context, urls ...string) (*Listener, error) {
	l, err := c.listen(ctx, urls)
	if err != nil {
		return nil, &Error{Op: "listen", Err: err}
	}
	return l, nil
}

func (c *Context) listen(ctx context.Context, urls []string) (*Listener, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.work.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	l := &Listener{
		context:   c,
		endpoints: map[string]transport.Listener{},
		meet:      newRendezvous(&c.expected),
		accepted:  make(chan *Pipe, c.limits.AcceptBacklog),
	}
	l.closing, l.stop = context.WithCancelCause(c.closing)
	err := l.openAll(ctx, c.servable(urls))
	if err == nil {
		err = l.start()
	}
	if err == nil {
		return l, nil
	}
	l.closeEndpoints()
	l.stop(ErrClosed)
	if c.closing.Err() != nil { // which may be why an endpoint was not opened
		err = ErrClosed
	}
	return nil, err
}

func (l *Listener) openAll(ctx context.Context, urls []string) error {
	for _, url := range urls {
		if err := l.open(ctx, url); err != nil {
			return err
		}
	}
	return nil
}

// servable leaves out the urls of transports that are refused here.
func (c *Context) servable(urls []string) []string {
	refused := c.registry.reasons("transport", nil)
	var left []string
	for _, url := range urls {
		name, _, _ := strings.Cut(url, "://")
		reason, without := refused[name]
		if without && !slices.Contains(c.opts.Policy.Transports.Require, name) {
			c.log.Warn("not listened on", "url", clip(url), "error", reason)
			continue
		}
		left = append(left, url)
	}
	if len(left) == 0 {
		return urls
	}
	return left
}

func (l *Listener) open(ctx context.Context, url string) error {
	entry, addr, err := l.context.splitURL(url)
	if err != nil {
		return err
	}
	if l.endpoints[entry.Name] != nil {
		return fmt.Errorf("%w: %q is a second one for transport %s", ErrURL, clip(url), entry.Name)
	}
	endpoint, err := entry.Transport.Listen(ctx, addr)
	if err != nil {
		return err
	}
	l.endpoints[entry.Name] = endpoint
	return nil
}

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

// URLs returns where the listener can be dialled, best transport first. They
// stay available after Close.
func (l *Listener) URLs() []string {
	var urls []string
	for _, e := range l.context.registry.transports {
		if endpoint, ok := l.endpoints[e.Name]; ok {
			urls = append(urls, e.Name+"://"+endpoint.Addr())
		}
	}
	return urls
}

// Accept waits for the next open pipe. It returns ctx's error when ctx ends
// and ErrClosed once the listener is closed. Failed handshakes of peers never
// show up here; they are logged and counted.
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

// Close stops listening. Calls blocked in Accept return ErrClosed, pipes that
// are being opened or that nobody accepted are closed, accepted ones live on.
func (l *Listener) Close() error {
	l.closed.Do(func() {
		l.stop(ErrClosed)
		l.closeEndpoints()
		l.work.Wait()
		l.closeUnaccepted()
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

func (l *Listener) closeUnaccepted() {
	for {
		select {
		case p := <-l.accepted:
			p.Abort(ErrClosed)
		default:
			return
		}
	}
}

// acceptConnections runs for each transport. Errors other than the end of the
// listener, such as a full table of descriptors, pass: it waits a little and
// goes on.
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
			l.pause(pause)
			pause = min(2*pause, lastPause)
			continue
		}
		pause = firstPause
		l.admit(transportName, conn)
	}
}

func (l *Listener) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.closing.Done():
	}
}

// admit starts a handshake unless too many are under way.
func (l *Listener) admit(transportName string, conn transport.Conn) {
	if !l.context.admitStranger() {
		l.refused(conn) // first: who sees the connection end finds it counted
		conn.Close()
		return
	}
	l.work.Go(func() { l.welcome(transportName, conn) })
}

// refused notes that a connection was closed because of the limit.
func (l *Listener) refused(conn transport.Conn) {
	limit := uint64(l.context.limits.HandshakesInProgress)
	l.context.counters.connectionsRefused.Add(1)
	l.context.log.Warn("connection refused", "peer", conn.RemoteAddr(), "error", limitError("handshakes in progress", limit+1, limit))
}

// usable tells which transports a peer can be sent to.
func (l *Listener) usable(name string) bool { return l.endpoints[name] != nil }

// advertise returns the address at which the peer behind conn can reach this
// listener over the named transport.
func (l *Listener) advertise(name, connTransport string, conn transport.Conn) string {
	endpoint := l.endpoints[name]
	if a, ok := endpoint.(transport.Advertiser); ok && name == connTransport {
		return a.AdvertiseTo(conn)
	}
	return endpoint.Addr()
}
