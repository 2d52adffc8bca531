package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
)

// ClientOptions configures a [Client]. A zero field stands for its default.
type ClientOptions struct {
	// Limits bounds the requests that the client sends and the replies that it accepts.
	Limits Limits
}

// Client is a [Store] that is reached over TCP. The server is a [Server] or a TCPStore of PyTorch 1.13.
//
// Concurrent calls use separate connections; up to four idle ones are kept for later calls. A cancelled
// call closes its connection, because the protocol has no message that withdraws a request.
//
// PyTorch's server has three known faults. CompareAndSet does not wake a Wait for the key that it
// creates. Add accepts a value that begins with digits and ignores the bytes that follow them. After a
// client that watched a key has disconnected, each change of that key still takes effect, but the
// server closes the connection of the client that makes it, and the call fails with ErrDisconnected.
type Client struct {
	addr   string
	limits Limits
	nonce  []byte        // a value that no key has
	sem    chan struct{} // held while a watch is registered

	mu        sync.Mutex
	closed    bool
	idle      []*clientConn
	busy      map[*clientConn]struct{}
	watchConn *watchConn // nil before the first Watch; replaced, under sem, after a failure
}

// maxIdle bounds the idle connections that a Client keeps.
const maxIdle = 4

// Dial connects to the server at addr (host:port) and returns a Client of it. While no server
// listens there, Dial retries until ctx ends, so ctx should have a deadline. ctx does not bound the
// life of the Client. The caller must close the Client.
//
// The error is an [*Error]. It matches the error of ctx if ctx has ended. Dial fails at once if
// addr is not of that form, or if the server rejects the first request.
func Dial(ctx context.Context, addr string, o ClientOptions) (*Client, error) {
	if err := checkAddr(addr); err != nil {
		return nil, fail("dial", addr, err)
	}
	c := &Client{
		addr:   addr,
		limits: o.Limits.orDefaults(),
		nonce:  []byte(rand.Text()),
		sem:    make(chan struct{}, 1),
		busy:   make(map[*clientConn]struct{}),
	}
	if err := c.connect(ctx); err != nil {
		c.Close()
		return nil, fail("dial", addr, err)
	}
	return c, nil
}

// connect dials until a connection succeeds or ctx ends, pausing for up to a second after each
// failure. It keeps the connection for later calls, and adds 1 to the counter at the key initKey,
// as PyTorch's clients do. If ctx ends first, the error wraps that of ctx and that of a failed
// dial. Otherwise the error is that of adding.
func (c *Client) connect(ctx context.Context) error {
	var last error // the last dial error that is not a timeout, if there was one
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		conn, err := c.dial(ctx)
		if err == nil {
			c.release(conn)
			break
		}
		if slow, ok := errors.AsType[net.Error](err); last == nil || !ok || !slow.Timeout() {
			last = err
		}
		// A failed name lookup is retried too: the machine may not have started yet.
		if !pause(ctx.Done(), wait) {
			ended := ctxerr.Wrap(ctx.Err())
			text := ended.Error()
			if slow, ok := errors.AsType[net.Error](last); !ok || !slow.Timeout() {
				text += ": " + errtext.OfNetwork(last, c.addr)
			}
			return errtext.New(text, ended, last)
		}
	}
	_, err := c.add(ctx, initKey, 1)
	return err
}

// checkAddr returns an error if addr is not host:port with a non-empty host and a port number from
// 1 to 65535, and nil otherwise. It does not look up the host.
func checkAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || n == 0 || host == "" {
		return errors.New("want host:port, with a port from 1 to 65535")
	}
	return nil
}

// Set sets the value of key and returns once the server has made the change. It does not keep
// value. The protocol has no reply to a set request, so Set sends a request that has one on the
// same connection and waits for that reply. The error, an [*Error], matches ErrLimit if key or
// value is too long.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	err := c.limits.check(key, value)
	if err == nil {
		set, count := request{op: opSet, key: userPrefix + key, value: value}, request{op: opCount}
		err = c.roundTrip(ctx, count.append(set.append(nil)), func(d *decoder) error {
			_, err := d.number()
			return err
		})
	}
	return fail("set", key, err)
}

// Get returns the value of key, which belongs to the caller. The error, an [*Error], matches
// ErrNotFound if there is no such key. The value is nil after an error.
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	value, err := c.get(ctx, key)
	return value, fail("get", key, err)
}

// get returns the value of key, which belongs to the caller. The error is ErrNotFound if there is
// no such key; otherwise it is that of compareAndSet. The value is nil after an error. get makes a
// compare-and-set request whose expected value no key has, so it changes nothing: in reply to the
// protocol's own get request for a missing key, the server would close the connection.
func (c *Client) get(ctx context.Context, key string) ([]byte, error) {
	value, err := c.compareAndSet(ctx, key, c.nonce, c.nonce)
	if err == nil && bytes.Equal(value, c.nonce) {
		return nil, ErrNotFound
	}
	return value, err
}

// Wait blocks until each of keys has existed at some time during the call. The error, an [*Error],
// matches ErrLimit if there are too many keys or one is too long, ErrClosed if the client is
// closed, ErrDisconnected if the connection to the server was closed otherwise, or the error of
// ctx.
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	err := c.limits.checkAll(keys)
	if err == nil {
		r := request{op: opWait}
		for _, k := range keys {
			r.keys = append(r.keys, userPrefix+k)
		}
		err = c.roundTrip(ctx, r.append(nil), func(d *decoder) error {
			reply, err := d.r.ReadByte()
			if err == nil && reply != replyReady {
				return fmt.Errorf("%w: a reply of %d instead of %d", ErrProtocol, reply, replyReady)
			}
			return err
		})
	}
	return fail("wait", firstKey(keys), err)
}

// Add adds delta to the decimal number that key holds, where a missing key counts as 0, and returns
// the sum. If the server finds that the value or the sum is not a 64-bit number, it closes the
// connection, and the error, an [*Error], matches ErrDisconnected. The sum is 0 after an error.
func (c *Client) Add(ctx context.Context, key string, delta int64) (int64, error) {
	n, err := c.add(ctx, userPrefix+key, delta)
	return n, fail("add", key, err)
}

// add adds delta to the number at wireKey, which is a key as the server stores it, and returns the
// sum. The error matches ErrLimit if wireKey is too long; otherwise it is that of roundTrip. The
// sum is 0 after an error.
func (c *Client) add(ctx context.Context, wireKey string, delta int64) (n int64, err error) {
	if len(wireKey) > c.limits.KeyBytes+len(userPrefix) {
		return 0, c.limits.check(wireKey)
	}
	r := request{op: opAdd, key: wireKey, delta: delta}
	err = c.roundTrip(ctx, r.append(nil), func(d *decoder) (err error) {
		n, err = d.number()
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// CompareAndSet sets key to desired if its value is expected, or if key does not exist and expected
// is empty. It returns the value after the call, which belongs to the caller. The error, an
// [*Error], matches ErrNotFound if key does not exist and expected is not empty; the value is then
// nil. If expected and desired are equal and not empty, CompareAndSet only reads the value.
func (c *Client) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	if len(expected) > 0 && bytes.Equal(expected, desired) {
		// Nothing would change, and the reply would not show whether the key exists.
		value, err = c.get(ctx, key)
		return value, fail("compare-and-set", key, err)
	}
	value, err = c.compareAndSet(ctx, key, expected, desired)
	if err == nil && len(expected) > 0 && bytes.Equal(value, expected) {
		value, err = nil, ErrNotFound // an existing key would now hold desired
	}
	return value, fail("compare-and-set", key, err)
}

// compareAndSet asks the server to set key to desired if its value is expected, or if key does not
// exist and expected is empty. It returns the value in the reply, which belongs to the caller: the
// value after the call. But if key does not exist and expected is not empty, the server replies
// with expected. The error matches ErrLimit if an argument is too long; otherwise it is that of
// roundTrip. The value is nil after an error.
func (c *Client) compareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	if err := c.limits.check(key, expected, desired); err != nil {
		return nil, err
	}
	r := request{op: opCompareAndSet, key: userPrefix + key, expected: expected, value: desired}
	err = c.roundTrip(ctx, r.append(nil), func(d *decoder) (err error) {
		value, err = d.value()
		return err
	})
	if err != nil {
		return nil, err
	}
	return value, nil
}

// Delete removes key and reports whether it existed. After an error, an [*Error], the result is
// false.
func (c *Client) Delete(ctx context.Context, key string) (existed bool, err error) {
	if err := c.limits.check(key); err != nil {
		return false, fail("delete", key, err)
	}
	r := request{op: opDelete, key: userPrefix + key}
	err = c.roundTrip(ctx, r.append(nil), func(d *decoder) error {
		n, err := d.number()
		existed = n > 0
		return err
	})
	return existed && err == nil, fail("delete", key, err)
}

// Close closes all connections of the client, waits until the goroutine that reads updates of
// watched keys has ended, and returns nil. Calls under way, later calls and the client's Watchers
// fail with ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	for _, conn := range c.idle {
		conn.Close()
	}
	for conn := range c.busy {
		conn.Close()
	}
	c.idle = nil
	w := c.watchConn
	c.mu.Unlock()
	if w != nil {
		w.closeOnce()
		<-w.done
	}
	return nil
}

// clientConn is a connection to a server with the decoder of its replies.
type clientConn struct {
	net.Conn
	from *decoder
}

// roundTrip sends an encoded request on a connection that no other call uses, and calls answer to
// read the reply. After an error it closes the connection; otherwise it passes the connection to
// release. It fails if ctx ends before the reply has been read. The error is ctx.Err() if ctx had
// ended before the call. Otherwise it is what cause makes of the error of dialling, of the
// connection or of answer.
func (c *Client) roundTrip(ctx context.Context, request []byte, answer func(*decoder) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := c.acquire(ctx)
	if err != nil {
		return c.cause(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(pastDeadline) })
	_, err = conn.Write(request)
	if err == nil {
		err = answer(conn.from)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		c.mu.Lock()
		delete(c.busy, conn)
		c.mu.Unlock()
		return c.cause(ctx, err)
	}
	c.release(conn)
	return nil
}

// pastDeadline makes a blocked read or write return at once.
var pastDeadline = time.Unix(1, 0)

// cause returns the error with which a call with the context ctx fails after err, which must not be
// nil. It returns ErrClosed if the client was closed, or else ctx.Err() if ctx has ended, or else
// context.DeadlineExceeded if err matches that error or os.ErrDeadlineExceeded, or else what
// connectionError returns for err. The caller must not hold c.mu.
func (c *Client) cause(ctx context.Context, err error) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return context.DeadlineExceeded // that of ctx: the dialer's timer fired first
	}
	return connectionError(err)
}

// connectionError returns ErrDisconnected if err shows that the connection was closed or reset, by
// either end. Otherwise it returns err itself.
func connectionError(err error) error {
	for _, sign := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, sign) {
			return ErrDisconnected
		}
	}
	return err
}

// acquire returns an idle connection, or a new one if there is none, for the use of one call. The
// caller must either pass it to release, or close it and remove it from c.busy. The error is
// ErrClosed, or that of dialling.
func (c *Client) acquire(ctx context.Context) (*clientConn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	if last := len(c.idle) - 1; last >= 0 {
		conn := c.idle[last]
		c.idle = c.idle[:last]
		c.busy[conn] = struct{}{}
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	return c.dial(ctx)
}

// dial opens a connection to the server and adds it to c.busy, so that Close closes it. The error
// is ErrClosed if the client is closed, or that of dialling.
func (c *Client) dial(ctx context.Context) (*clientConn, error) {
	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	raw, err := dialer.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	conn := &clientConn{Conn: raw, from: newDecoder(raw, c.limits)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		raw.Close()
		return nil, ErrClosed
	}
	c.busy[conn] = struct{}{}
	return conn, nil
}

// release removes conn from c.busy and adds it to the idle connections. It closes conn instead if
// maxIdle connections are idle or the client is closed. No reply may be outstanding on conn. The
// caller must not hold c.mu.
func (c *Client) release(conn *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, conn)
	if c.closed || len(c.idle) == maxIdle {
		conn.Close()
		return
	}
	c.idle = append(c.idle, conn)
}
