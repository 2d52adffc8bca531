package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
)

// TCP are the connections that a path over TCP is made of, and nothing else:
// Write at one end, io.ReadFull at the other, each message cut into as many parts
// as there are connections. They have the congestion control that the transport
// uv gives its own.
type TCP struct {
	Child Program // must call RunChild
}

// Name is "tcp".
func (TCP) Name() string { return "tcp" }

// Measure implements Yardstick.
func (y TCP) Measure(ctx context.Context, s Spec, r *Result) (*Result, error) {
	s = s.withDefaults()
	n := connections(r)
	if n == 0 || !s.hasYardstick() {
		return nil, nil
	}
	p, err := startProcess(ctx, "bench tcp server", y.Child)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	var hello greeting
	err = p.ask(job{Role: roleTCP, Spec: s, Connections: n}, &hello)
	if err == nil && len(hello.URLs) == 0 {
		err = ErrProtocol
	}
	var out *Result
	if err == nil {
		out, err = y.flood(ctx, s, hello.URLs[0], n)
	}
	if err := blame(err, p.end()); err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	return out, nil
}

// Carries reports whether the tensors of a measurement went one way over TCP, which
// those of the other of two that are compared need not have done.
func (TCP) Carries(r *Result) bool { return connections(r) > 0 }

// connections is how many TCP connections carried the tensors of a measurement one
// way.
func connections(r *Result) int {
	most := 0
	for name := range strings.SplitSeq(r.OneWayRoute, ",") {
		n := 0
		switch {
		case name == mpt.UVName:
			n = r.Connections
		case r.Transport == tcpTransport && (name == basic.Name || name == Bulk || name == Inline):
			n = 1
		}
		most = max(most, n)
	}
	return most
}

// flood dials and sends all messages.
func (y TCP) flood(ctx context.Context, s Spec, addr string, n int) (*Result, error) {
	b, err := newBundle(s)
	if err != nil {
		return nil, err
	}
	defer b.memory.release()
	defer b.close()
	defer context.AfterFunc(ctx, b.close)()
	dialer := net.Dialer{Control: unpaced}
	for k := range n {
		c, err := dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		b.add(c)
		if _, err := c.Write([]byte{byte(k)}); err != nil {
			return nil, err
		}
	}
	took, cpu, err := b.sendAll()
	if err != nil {
		return nil, err
	}
	r := newYardstickResult(y.Name(), s, took, cpu)
	r.Processes, r.Connections = 2, n
	return r, nil
}

// bundle is one end of the connections, and memory for a batch.
type bundle struct {
	spec   Spec
	memory arena

	mu    sync.Mutex
	conns []net.Conn
	ended bool
}

func newBundle(s Spec) (*bundle, error) {
	b := &bundle{spec: s, memory: arena{buffers: s.Buffers}}
	return b, b.memory.resize(s.batch(), s.Size)
}

func (b *bundle) add(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = append(b.conns, c)
	if b.ended {
		_ = c.Close()
	}
}

func (b *bundle) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	for _, c := range b.conns {
		_ = c.Close()
	}
}

// each runs work for all connections at once.
func (b *bundle) each(work func(k int, c net.Conn) error) error {
	var working sync.WaitGroup
	errs := make([]error, len(b.conns))
	for k, c := range b.conns {
		working.Go(func() { errs[k] = work(k, c) })
	}
	working.Wait()
	return errors.Join(errs...)
}

// share is what connection k carries of message i.
func (b *bundle) share(i, k int) []byte {
	p, n := b.memory.slot(i), len(b.conns)
	return p[len(p)*k/n : len(p)*(k+1)/n]
}

// sendAll returns the time, and the CPU time of both processes, of all batches
// that count.
func (b *bundle) sendAll() (took, cpu time.Duration, err error) {
	var since time.Duration // CPU time of the server when it had the batch before
	for i, n := range b.spec.floods() {
		b.memory.fill(n, i)
		before, start := cpuTime(), time.Now()
		theirs, err := b.send(n)
		if err != nil {
			return 0, 0, err
		}
		if i > 0 {
			took, cpu = took+time.Since(start), cpu+cpuTime()-before+theirs-since
		}
		since = theirs
	}
	return took, cpu, nil
}

// send sends a batch and returns the CPU time of the server when it has all.
func (b *bundle) send(n int) (theirs time.Duration, err error) {
	used := make([]time.Duration, len(b.conns))
	err = b.each(func(k int, c net.Conn) error {
		for i := range n {
			if _, err := c.Write(b.share(i, k)); err != nil {
				return err
			}
		}
		var word [8]byte
		_, err := io.ReadFull(c, word[:])
		used[k] = time.Duration(binary.LittleEndian.Uint64(word[:]))
		return err
	})
	for _, d := range used {
		theirs = max(theirs, d)
	}
	return theirs, err
}
