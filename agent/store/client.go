package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// ClientOptions change a [Client]. A zero field stands for its default.
type ClientOptions struct {
	// Limits bound what is sent, and what the server may answer.
	Limits Limits
}

// Client is a store that a server elsewhere serves: a [Server], or a TCPStore of
// PyTorch 1.13.
//
// Each call has a connection for itself; some are kept for the next ones. A call
// that is given up takes its connection with it, because the protocol cannot
// withdraw a request.
//
// PyTorch's server has faults that show. A key made by CompareAndSet does not wake
// those who Wait for it. Add to a value that begins with digits takes these. Once a
// client that watched a key has gone, every change of that key is made, but ends
// the connection of who makes it, with ErrDisconnected.
type Client struct {
	addr   string
	limits Limits
	nonce  []byte // a value that no key has
	turn   chan struct{}

	mu     sync.Mutex
	closed bool
	idle   []*clientConn
	busy   map[*clientConn]struct{}
	link   *link // nil before the first Watch, and after one that broke; the turn protects it too
}

// maxIdle is how many connections are kept for later calls.
const maxIdle = 4

// Dial connects to the server at addr, host:port. Where none is there yet it
// tries until ctx ends: give it a deadline. The caller closes the Client.
func Dial(ctx context.Context, addr string, o ClientOptions) (*Client, error) {
	if err := checkAddr(addr); err != nil {
		return nil, fail("dial", addr, err)
	}
	c := &Client{
		addr:   addr,
		limits: o.Limits.orDefaults(),
		nonce:  []byte(rand.Text()),
		turn:   make(chan struct{}, 1),
		busy:   make(map[*clientConn]struct{}),
	}
	if err := c.greet(ctx); err != nil {
		c.Close()
		return nil, fail("dial", addr, err)
	}
	return c, nil
}

// greet connects, and counts this client as PyTorch's server expects it.
func (c *Client) greet(ctx context.Context) error {
	var last error // that says more than that time has run out
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		conn, err := c.dial(ctx)
		if err == nil {
			c.release(conn)
			break
		}
		if slow, ok := errors.AsType[net.Error](err); last == nil || !ok || !slow.Timeout() {
			last = err
		}
		// Nobody knows the name of a machine that has not started yet, either.
		if !pause(ctx.Done(), wait) {
			return fmt.Errorf("%w: %w", ended{ctx.Err()}, last)
		}
	}
	_, err := c.add(ctx, initKey, 1)
	return err
}

// checkAddr finds what no waiting will mend.
func checkAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
		return errors.New("not of the form host:port")
	}
	return nil
}

// Set implements [Store]. The protocol does not confirm it, so a request that is
// answered follows on the same connection.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	err := c.limits.check(key, value)
	if err == nil {
		set, count := request{op: opSet, key: userPrefix + key, value: value}, request{op: opCount}
		err = c.ask(ctx, count.append(set.append(nil)), func(d *decoder) error {
			_, err := d.number()
			return err
		})
	}
	return fail("set", key, err)
}

// Get implements [Store].
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	value, err := c.get(ctx, key)
	return value, fail("get", key, err)
}

// get compares with a value that no key has, and so changes nothing. A plain
// request for a key that does not exist would end the connection.
func (c *Client) get(ctx context.Context, key string) ([]byte, error) {
	value, err := c.compareAndSet(ctx, key, c.nonce, c.nonce)
	if err == nil && bytes.Equal(value, c.nonce) {
		return nil, ErrNotFound
	}
	return value, err
}

// Wait implements [Store].
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	err := c.limits.checkAll(keys)
	if err == nil {
		r := request{op: opWait}
		for _, k := range keys {
			r.keys = append(r.keys, userPrefix+k)
		}
		err = c.ask(ctx, r.append(nil), func(d *decoder) error {
			return d.expect(replyReady)
		})
	}
	return fail("wait", first(keys), err)
}

// Add implements [Store].
func (c *Client) Add(ctx context.Context, key string, delta int64) (int64, error) {
	n, err := c.add(ctx, userPrefix+key, delta)
	return n, fail("add", key, err)
}

func (c *Client) add(ctx context.Context, wireKey string, delta int64) (n int64, err error) {
	if len(wireKey) > c.limits.KeyBytes+len(userPrefix) {
		return 0, c.limits.check(wireKey)
	}
	r := request{op: opAdd, key: wireKey, delta: delta}
	err = c.ask(ctx, r.append(nil), func(d *decoder) (err error) {
		n, err = d.number()
		return err
	})
	return n, err
}

// CompareAndSet implements [Store].
func (c *Client) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	if len(expected) > 0 && bytes.Equal(expected, desired) {
		// It changes nothing, and the answer would not tell whether the key exists.
		value, err = c.get(ctx, key)
		return value, fail("compare-and-set", key, err)
	}
	value, err = c.compareAndSet(ctx, key, expected, desired)
	if err == nil && len(expected) > 0 && bytes.Equal(value, expected) {
		value, err = nil, ErrNotFound // or it would have been replaced
	}
	return value, fail("compare-and-set", key, err)
}

func (c *Client) compareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	if err := c.limits.check(key, expected, desired); err != nil {
		return nil, err
	}
	r := request{op: opCompareAndSet, key: userPrefix + key, expected: expected, value: desired}
	err = c.ask(ctx, r.append(nil), func(d *decoder) (err error) {
		value, err = d.value()
		return err
	})
	return value, err
}

// Delete implements [Store].
func (c *Client) Delete(ctx context.Context, key string) (existed bool, err error) {
	if err := c.limits.check(key); err != nil {
		return false, fail("delete", key, err)
	}
	r := request{op: opDelete, key: userPrefix + key}
	err = c.ask(ctx, r.append(nil), func(d *decoder) error {
		n, err := d.number()
		existed = n > 0
		return err
	})
	return existed, fail("delete", key, err)
}

// Close implements [Store].
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
	link := c.link
	c.mu.Unlock()
	if link != nil {
		link.close()
	}
	return nil
}
