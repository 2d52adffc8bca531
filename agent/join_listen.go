package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// accept accepts pipes of other workers until the listener or the agent is closed, and performs
// the handshake of each on another goroutine.
func (a *Agent) accept() {
	for {
		pp, err := a.listener.Accept(a.base)
		if err != nil {
			return // the listener is closed
		}
		ctx, cancel := context.WithCancelCause(a.base)
		a.handshakes.start(pendingHandshake{pp, cancel})
		if !a.spawn(func() { a.serveHandshake(ctx, pp); cancel(nil) }) {
			cancel(ErrClosed)
			pp.Abort(ErrClosed)
			return
		}
	}
}

// serveHandshake performs the handshake of the pipe pp, which another worker or this one opened,
// and attaches pp to the peer that opened it. If the handshake fails, serveHandshake logs that,
// waits until the other end has read the reason and closes its end, and aborts the pipe. It does
// the same, without a log, after the status was sent to a client that is no member, and if this
// worker is opening a pipe to the peer itself. It takes at most the handshake timeout and ends when
// ctx ends.
func (a *Agent) serveHandshake(ctx context.Context, pp *pipe.Pipe) {
	defer a.handshakes.finish(pp)
	ctx, cancel := context.WithTimeout(ctx, a.handshakeTimeout)
	defer cancel()
	p, t, err := a.acceptHandshake(ctx, pp)
	if err != nil {
		if !errors.Is(err, errSimultaneousOpen) && err != errInspected {
			a.log.Warn("worker rejected", "address", pp.RemoteAddr(), "error", err)
			a.stats.rejectedPipes.Add(1)
		}
		if _, next := pp.Next(ctx); next == nil { // the peer closes the pipe once it has read the reason
			err = errtext.Join(err, ErrProtocol) // a message after the rejection
		}
		pp.Abort(err)
		return
	}
	if p == a.selfPeer {
		if c := a.newConn(pp, p, t); !c.startReading() {
			a.conns.Delete(c)
			pp.Abort(ErrClosed)
		}
		return
	}
	if _, err := p.setConn(pp, t); err != nil {
		a.log.Debug("pipe not attached", "worker", p.info.Name, "error", err)
	}
	p.acceptDone()
}

// handshakeTable holds the pipes whose peers have not proved yet that they know the token, or only
// ask for the status. Any process that reaches the address can open pipes and send nothing. If
// there are too many, the oldest is evicted, since a member completes its handshake in a few round
// trips.
type handshakeTable struct {
	max int
	mu  sync.Mutex
	all []pendingHandshake // oldest first
}

type pendingHandshake struct {
	pp     *pipe.Pipe
	cancel context.CancelCauseFunc // of the handshake's context
}

// errHandshakeEvicted ends an evicted pipe.
var errHandshakeEvicted = fmt.Errorf("%w: too many pipes opened before this one proved that it knows the token", ErrRefused)

// start adds a handshake. If there are more than max it evicts the oldest: it cancels that
// handshake and aborts its pipe.
func (t *handshakeTable) start(g pendingHandshake) {
	t.mu.Lock()
	t.all = append(t.all, g)
	var oldest pendingHandshake
	if len(t.all) > t.max {
		oldest = t.all[0]
		t.all = slices.Delete(t.all, 0, 1)
	}
	t.mu.Unlock()
	if oldest.pp != nil {
		oldest.cancel(errHandshakeEvicted)
		oldest.pp.Abort(errHandshakeEvicted)
	}
}

// finish removes a pipe whose peer has proved that it knows the token, or whose handshake has
// ended, and returns true. It returns false if the pipe is not in the table, because it was
// evicted or has been removed.
func (t *handshakeTable) finish(pp *pipe.Pipe) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.all)
	t.all = slices.DeleteFunc(t.all, func(g pendingHandshake) bool { return g.pp == pp })
	return len(t.all) < before
}

// routeTo returns the address of this machine, without a port, from which it sends to addr, a host
// and port. It returns "" if addr is empty or has a wildcard or nothing as its host, or if no route
// is found. It sends nothing to addr, but may resolve a name, until ctx ends.
func routeTo(ctx context.Context, addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if ip, bad := netip.ParseAddr(host); err != nil || host == "" || bad == nil && ip.IsUnspecified() {
		return ""
	}
	conn, err := new(net.Dialer).DialContext(ctx, "udp", addr) // connects the socket, which chooses the route
	if err != nil {
		return ""
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().String()
}

// maxHosts bounds the addresses that a worker publishes for a wildcard.
const maxHosts = 8

// publishedHosts returns the addresses of this machine that a worker publishes in place of a
// wildcard, at most maxHosts: first route, the address from which the worker reaches the store, and
// then those of its network interfaces, except loopback and link-local ones. It returns nil if
// route is empty.
func publishedHosts(route string) []string {
	if route == "" {
		return nil
	}
	hosts := []string{route}
	addrs, _ := net.InterfaceAddrs() // without them route is enough
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() || len(hosts) == maxHosts {
			continue
		}
		if host := n.IP.String(); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// defaultListen returns the URLs for a Config without Listen: shared memory, and a free TCP port at
// route, the address from which this worker reaches the store. If route is empty, the port is on
// the loopback interface.
func defaultListen(route string) []string {
	if route == "" {
		route = "127.0.0.1"
	}
	return []string{"uv://" + net.JoinHostPort(route, "0"), "shm://"}
}

// publishedURLs returns the URLs at which other workers reach the listener of a. If they cannot be
// determined, because a listens at a wildcard and the address from which a reaches the store is
// unknown or not included in the wildcard, the error matches ErrConfig.
func (a *Agent) publishedURLs() ([]string, error) {
	urls, err := a.listener.URLsAt(publishedHosts(a.route)...)
	if err != nil {
		return nil, fmt.Errorf("%w: set Listen to an address of this machine that the other workers reach: %w", ErrConfig, err)
	}
	return urls, nil
}

// beyondMachine reports whether the store of a may be on another machine: a reaches the store over
// TCP, and not from an address of the loopback interface.
func (a *Agent) beyondMachine() bool {
	return a.route != "" && !isLoopback(net.JoinHostPort(a.route, "0"))
}

// exposure is a service of this worker at an address.
type exposure struct {
	action  string // what this worker does, for the error
	warning string // what any process that reaches the address can do
	address string // URL
	local   bool   // whether only processes of this machine reach it
}

// checkAccess returns nil if a token protects e, if Config.Secure is set, or if only processes of
// this machine can reach e. Otherwise it logs a warning and returns nil if Config.Insecure is set,
// and returns an error that matches ErrConfig if not.
func (a *Agent) checkAccess(c *Config, e exposure) error {
	if len(c.Token) > 0 || c.Secure || e.local {
		return nil
	}
	if !c.Insecure {
		return fmt.Errorf("%w: %s at %s admits any process that reaches it: set Token, use TLS, or set Insecure", ErrConfig, e.action, e.address)
	}
	a.log.Warn(e.warning, "address", e.address)
	return nil
}

// isLoopback reports whether the host of a TCP address, host:port, is localhost or an address of
// the loopback interface.
func isLoopback(address string) bool {
	u, err := url.Parse("tcp://" + address)
	return err == nil && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback())
}
