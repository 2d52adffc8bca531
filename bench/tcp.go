package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
)

// TCP is the Yardstick of plain TCP connections, as many as the path of the subject has: Write at one
// end, io.ReadFull at the other, with each message divided among the connections. They use the
// congestion control that the transport uv chooses within a machine.
type TCP struct {
	Child Program // must call RunChild
}

// Name returns "tcp", the name of this yardstick in results.
func (TCP) Name() string { return "tcp" }

// Measure sends the one-way messages of s to a child process over as many plain TCP connections as
// carried the tensors of r, and returns the result. It returns nil, nil if the tensors of r did not
// travel over TCP one way, or if s sends messages that are too small, or none. If ctx has ended the
// error is the cause of ctx. Otherwise it is a *ProcessError, matches ErrProtocol, or is that of
// starting the process, of the allocator or of a connection.
func (t TCP) Measure(ctx context.Context, s Spec, r *Result) (*Result, error) {
	s = s.withDefaults()
	n := connections(r)
	if n == 0 || !s.hasYardstick() {
		return nil, nil
	}
	p, err := startProcess(ctx, "bench tcp server", t.Child)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	var info serverInfo
	err = p.request(job{Role: roleTCP, Spec: s, Connections: n}, &info)
	if err == nil && len(info.URLs) == 0 {
		err = ErrProtocol
	}
	var out *Result
	if err == nil {
		out, err = t.run(ctx, s, info.URLs[0], n)
	}
	if err := rootCause(err, p.end()); err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	return out, nil
}

// Carries reports whether at least one route of the one-way tensors of the measurement r uses TCP, so
// that Measure has a number of connections to compare r with.
func (TCP) Carries(r *Result) bool { return connections(r) > 0 }

// connections returns the number of TCP connections that carried the one-way tensors of the
// measurement r: the largest of its routes, or 0 if no route uses TCP.
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

// run dials n connections to addr, sends all messages of s over them, closes them, and returns the
// result. When ctx ends it closes the connections, so that it fails soon. The error is that of the
// allocator or of a connection.
func (t TCP) run(ctx context.Context, s Spec, addr string, n int) (*Result, error) {
	g, err := newConnGroup(s)
	if err != nil {
		return nil, err
	}
	defer g.memory.release()
	defer g.close()
	defer context.AfterFunc(ctx, g.close)()
	dialer := net.Dialer{Control: useReno}
	for k := range n {
		c, err := dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		g.add(c)
		if _, err := c.Write([]byte{byte(k)}); err != nil {
			return nil, err
		}
	}
	took, cpu, err := g.sendAll()
	if err != nil {
		return nil, err
	}
	r := newYardstickResult(t.Name(), s, took, cpu)
	r.Processes, r.Connections = 2, n
	return r, nil
}

// connGroup is one end of a group of connections that share messages, with memory for a batch. close
// may be called concurrently with the other methods.
type connGroup struct {
	spec   Spec
	memory arena

	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

// newConnGroup returns a group without connections, with memory for a batch of s. The caller must
// call close. The error is that of the allocator; the group must then not be used.
func newConnGroup(s Spec) (*connGroup, error) {
	g := &connGroup{spec: s, memory: arena{buffers: s.Buffers}}
	return g, g.memory.resize(s.batch(), s.Size)
}

// add adds the connection c to the group, which owns it from then on. If the group is closed
// already, add closes c.
func (g *connGroup) add(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns = append(g.conns, c)
	if g.closed {
		_ = c.Close()
	}
}

// close closes all connections of the group, and makes add close those that come later. It may be
// called again.
func (g *connGroup) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, c := range g.conns {
		_ = c.Close()
	}
}

// each calls work concurrently for all connections, with the index and the connection, and waits
// for all calls. It returns their errors joined, or nil. No connection may be added until each has
// returned.
func (g *connGroup) each(work func(k int, c net.Conn) error) error {
	var working sync.WaitGroup
	errs := make([]error, len(g.conns))
	for k, c := range g.conns {
		working.Go(func() { errs[k] = work(k, c) })
	}
	working.Wait()
	return errors.Join(errs...)
}

// stripe returns the part of message i that connection k carries. It shares the memory of the
// message.
func (g *connGroup) stripe(i, k int) []byte {
	p, n := g.memory.slot(i), len(g.conns)
	return p[len(p)*k/n : len(p)*(k+1)/n]
}

// sendAll sends all batches of the spec and waits until the server has read them. It returns the
// time, and the CPU time of both processes, for all batches but the first, which is a warm-up. It
// stops at the first batch that fails, and returns the error of send.
func (g *connGroup) sendAll() (took, cpu time.Duration, err error) {
	var since time.Duration // the server's CPU time at the end of the previous batch
	for i, n := range g.spec.batchSizes() {
		if err := g.memory.fill(n, i); err != nil {
			return 0, 0, err
		}
		before, start := cpuTime(), time.Now()
		serverCPU, err := g.send(n)
		if err != nil {
			return 0, 0, err
		}
		if i > 0 {
			took, cpu = took+time.Since(start), cpu+cpuTime()-before+serverCPU-since
		}
		since = serverCPU
	}
	return took, cpu, nil
}

// send sends a batch of n messages and waits until the server has read it. It returns the CPU time
// that the server process has used since its start, as the server reports it. The error joins those
// of the connections; with an error the CPU time has no meaning.
func (g *connGroup) send(n int) (serverCPU time.Duration, err error) {
	used := make([]time.Duration, len(g.conns))
	err = g.each(func(k int, c net.Conn) error {
		for i := range n {
			if _, err := c.Write(g.stripe(i, k)); err != nil {
				return err
			}
		}
		var reply [8]byte
		_, err := io.ReadFull(c, reply[:])
		used[k] = time.Duration(binary.LittleEndian.Uint64(reply[:]))
		return err
	})
	for _, d := range used {
		serverCPU = max(serverCPU, d)
	}
	return serverCPU, err
}

// CongestionControl returns the name of the system's congestion control for new TCP connections,
// such as "cubic", or "" if it is unknown. The speed of one connection of a C++ peer depends on it,
// also within a machine; the transport uv chooses another one there.
func CongestionControl() string {
	name, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// receive runs the server of the yardstick TCP. It listens, prints its serverInfo to out, accepts
// the connections and reads all batches. After each batch it sends its CPU time on every
// connection. It then blocks until ctx ends, and returns nil. The error matches ErrProtocol, or is
// that of listening, of the allocator, of out or of a connection.
func (j job) receive(ctx context.Context, out *json.Encoder) error {
	if j.Connections < 1 || j.Connections > maxLanes {
		return fmt.Errorf("%w: %d connections", ErrProtocol, j.Connections)
	}
	listening := net.ListenConfig{Control: useReno}
	l, err := listening.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	g, err := newConnGroup(j.Spec)
	if err != nil {
		return err
	}
	defer g.close()
	defer context.AfterFunc(ctx, func() {
		_ = l.Close()
		g.close()
	})()
	if err := out.Encode(serverInfo{[]string{l.Addr().String()}}); err != nil {
		return err
	}
	for range j.Connections {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		g.add(c)
	}
	if err := g.each(g.read); err != nil {
		return err
	}
	<-ctx.Done() // the client closes first
	return nil
}

// read reads all batches from the connection c into the group's memory, and replies to each with
// the CPU time of this process. The first byte that arrives on c is the index of its part of each
// message: so connections may be accepted in any order. The error matches ErrProtocol for a wrong
// index, or is that of c.
func (g *connGroup) read(_ int, c net.Conn) error {
	var first [1]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return err
	}
	k := int(first[0])
	if k >= len(g.conns) {
		return fmt.Errorf("%w: connection %d of %d", ErrProtocol, k, len(g.conns))
	}
	for batch, n := range g.spec.batchSizes() {
		for i := range n {
			if _, err := io.ReadFull(c, g.stripe(i, k)); err != nil {
				return fmt.Errorf("batch %d: %w", batch, err)
			}
		}
		reply := binary.LittleEndian.AppendUint64(nil, uint64(cpuTime()))
		if _, err := c.Write(reply); err != nil {
			return err
		}
	}
	return nil
}
