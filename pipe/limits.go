package pipe

import (
	"cmp"
	"fmt"
	"math"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/quota"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// Limits bound the resources of a message, of a peer, or of all pipes of a context
// together. They are checked before memory is allocated, for messages of both ends. A
// field of 0 takes the default.
type Limits struct {
	// DescriptorBytes bounds the encoded descriptor of one message: all metadata,
	// and some 20 bytes per payload and tensor. Default 4 MiB.
	DescriptorBytes int

	// MaxPayloads and MaxTensors bound their number in one message. Default 65536
	// each.
	MaxPayloads int
	MaxTensors  int

	// PayloadBytes and TensorBytes bound the size of one payload and of one
	// tensor. Default 4 GiB and 64 GiB. In the compatible dialect the transport may
	// have a lower bound; larger parts then fail with ErrLimit.
	PayloadBytes int
	TensorBytes  int

	// MessageBytes bounds the sum of all payloads and tensors of a message, and so
	// the memory of a receiver that allocates as much as a descriptor announces.
	// Default 64 GiB.
	MessageBytes int

	// PipeBytesInFlight and ContextBytesInFlight bound the bytes of messages that
	// were given to Write and are not sent yet, for one pipe and for all pipes of
	// the context. Writers wait while a bound is reached. A message larger than the
	// pipe's bound is sent alone; of the context's bound a message counts at most
	// half. A part that will be compressed counts twice until it is, and with its
	// compressed size from then on. ContextBytesInFlight also bounds, separately, the
	// received bytes that wait for a stream before they can be copied to host memory;
	// a Read that would exceed it waits for its stream. Default 1 GiB and 4 GiB.
	PipeBytesInFlight    int
	ContextBytesInFlight int

	// MaxReadAheadMessages and ReadAheadBytes bound the descriptors and small payloads
	// that a pipe reads before the application calls Next and Read. Default 16
	// messages and 256 KiB.
	MaxReadAheadMessages int
	ReadAheadBytes       int

	// ContextWindowBytes bounds by how much the windows of all native sessions of
	// the context together may grow beyond 256 KiB per stream: bytes that peers have
	// sent and this end has not read. A pipe whose windows cannot grow still works,
	// at 256 KiB per round trip. Half of it also bounds the parts that admitted
	// peers send before Read is called, up to 8 MiB for each pipe, and 2 MiB of inline
	// ones, see Options.NoEager.
	// With shared memory it bounds by how much the rings
	// to which this end writes may grow, each by 2 MiB, beyond 656 KiB for the
	// messages of a pipe, as much for its large data if that uses a ring, and 84 KiB
	// for each other stream. A ring starts with 16 or 4 KiB; after 4 to 8 s without
	// writes it shrinks to that size and releases its bytes. Default 256 MiB.
	ContextWindowBytes int

	// MaxHandshakesInProgress bounds the accepted connections of a context that have
	// not sent their first packet, and separately the pipes that are being opened.
	// Further connections are closed at once, except those that a pipe being opened
	// expects. Default 1024.
	MaxHandshakesInProgress int

	// HandshakeBytes bounds each message of the handshake. Default 256 KiB.
	HandshakeBytes int

	// UnadmittedBytes is a quota for all clients together that the application has
	// not admitted, see [Pipe.Admit]: whole and partial frames of handshakes, messages
	// and control streams, bytes in sessions, and copies of messages that the peer
	// does not read. When it is used up the peers that hold most are disconnected, with
	// an error that matches ErrLimit; until their memory is free, calls on other
	// unadmitted pipes may block. It does not count the fixed memory of a pipe, some
	// 100 KiB of buffers and stacks, and 64 KiB of TLS for each connection of the
	// compatible dialect; nor rings in shared memory, nor memory of the application, nor
	// received bytes that wait for a stream.
	// Default 0, which means no bound.
	UnadmittedBytes int

	// MaxAcceptBacklog bounds the open pipes that wait for Accept. Default 128.
	MaxAcceptBacklog int

	// MaxConns bounds the Conns of one client of [Context.ListenConn], which share a session;
	// further ones fail, at most 4096. MaxConnSessions bounds these sessions in a context; a client
	// beyond it is rejected. Default 1024 each. A Conn that its application does not read
	// holds up to 256 KiB, and up to 4 MiB as far as ContextWindowBytes allows; 84 KiB through
	// shared memory.
	MaxConns        int
	MaxConnSessions int
}

// maxInt returns n as an int, or math.MaxInt if n is larger than that on this machine.
func maxInt(n int64) int { return int(min(n, math.MaxInt)) }

// check returns nil if no limit is negative or too large, and otherwise an error that matches
// ErrOptions and names one of the wrong limits.
func (l Limits) check() error {
	for name, n := range map[string]int{
		"DescriptorBytes":         l.DescriptorBytes,
		"MaxPayloads":             l.MaxPayloads,
		"MaxTensors":              l.MaxTensors,
		"PayloadBytes":            l.PayloadBytes,
		"TensorBytes":             l.TensorBytes,
		"MessageBytes":            l.MessageBytes,
		"PipeBytesInFlight":       l.PipeBytesInFlight,
		"ContextBytesInFlight":    l.ContextBytesInFlight,
		"MaxReadAheadMessages":    l.MaxReadAheadMessages,
		"ReadAheadBytes":          l.ReadAheadBytes,
		"ContextWindowBytes":      l.ContextWindowBytes,
		"MaxHandshakesInProgress": l.MaxHandshakesInProgress,
		"HandshakeBytes":          l.HandshakeBytes,
		"UnadmittedBytes":         l.UnadmittedBytes,
		"MaxAcceptBacklog":        l.MaxAcceptBacklog,
		"MaxConns":                l.MaxConns,
		"MaxConnSessions":         l.MaxConnSessions,
	} {
		if n < 0 {
			return fmt.Errorf("%w: Limits.%s is %d", ErrOptions, name, n)
		}
	}
	if l.MaxConns > wire.MaxConns {
		return fmt.Errorf("%w: Limits.MaxConns is %d, at most %d", ErrOptions, l.MaxConns, wire.MaxConns)
	}
	return nil
}

func (l Limits) withDefaults() Limits {
	l.DescriptorBytes = cmp.Or(l.DescriptorBytes, 4<<20)
	l.MaxPayloads = cmp.Or(l.MaxPayloads, 1<<16)
	l.MaxTensors = cmp.Or(l.MaxTensors, 1<<16)
	l.PayloadBytes = cmp.Or(l.PayloadBytes, maxInt(4<<30))
	l.TensorBytes = cmp.Or(l.TensorBytes, maxInt(64<<30))
	l.MessageBytes = cmp.Or(l.MessageBytes, maxInt(64<<30))
	l.PipeBytesInFlight = cmp.Or(l.PipeBytesInFlight, 1<<30)
	l.ContextBytesInFlight = cmp.Or(l.ContextBytesInFlight, maxInt(4<<30))
	l.MaxReadAheadMessages = cmp.Or(l.MaxReadAheadMessages, 16)
	l.ReadAheadBytes = cmp.Or(l.ReadAheadBytes, 256<<10)
	l.ContextWindowBytes = cmp.Or(l.ContextWindowBytes, 256<<20)
	l.MaxHandshakesInProgress = cmp.Or(l.MaxHandshakesInProgress, 1024)
	l.HandshakeBytes = cmp.Or(l.HandshakeBytes, 256<<10)
	l.MaxAcceptBacklog = cmp.Or(l.MaxAcceptBacklog, 128)
	l.MaxConns = cmp.Or(l.MaxConns, 1024)
	l.MaxConnSessions = cmp.Or(l.MaxConnSessions, 1024)
	return l
}

// wire returns those of the limits l that decoding messages of TensorPipe's own protocol needs.
func (l Limits) wire() wire.Limits {
	return wire.Limits{
		Frame:    int64(max(l.DescriptorBytes, l.HandshakeBytes)),
		Payloads: l.MaxPayloads,
		Tensors:  l.MaxTensors,
	}
}

// native returns those of the limits l that decoding frames of the native dialect needs, with
// defaults for the others.
func (l Limits) native() native.Limits {
	return native.Limits{
		Descriptor: l.DescriptorBytes,
		Payloads:   l.MaxPayloads,
		Tensors:    l.MaxTensors,
	}.WithDefaults()
}

// Admit gives back the bytes that the pipe holds of the quota Limits.UnadmittedBytes, and stops
// counting the pipe's memory against the quota. The peer may then send parts before they
// are asked for, see Options.NoEager. An application calls it when it trusts the peer.
// Admit has no effect on a pipe that this end has dialled, that is admitted already or that is
// closed.
func (p *Pipe) Admit() {
	p.account.Close()
	if engine, ok := p.engine.(*nativePipe); ok {
		engine.bulk.grantCredit(false)
	}
}

// unadmittedError returns the error with which a pipe or handshake ends when the quota
// Limits.UnadmittedBytes is used up and its peer holds the most of it. The error matches ErrLimit.
func (c *Context) unadmittedError() error {
	return fmt.Errorf("%w: peers that are not admitted hold the %d bytes of UnadmittedBytes, and this peer holds the most",
		ErrLimit, c.limits.UnadmittedBytes)
}

// failOnEviction makes the pipe fail, with an error that matches ErrLimit, when the quota
// Limits.UnadmittedBytes evicts the pipe's peer. Before this call an eviction ends the handshake
// instead. If the peer has been evicted already, failOnEviction leaves the pipe as it is and
// returns an error that matches ErrLimit.
func (p *Pipe) failOnEviction() error {
	fail := func() { p.fail(p.errorFor("connection", "", p.context.unadmittedError())) }
	if !p.account.OnEvict(fail) {
		return p.context.unadmittedError()
	}
	return nil
}

// awaitQuota blocks a writer while the quota Limits.UnadmittedBytes is used up, without charging
// bytes to it, and reports true. If it has to block, it reports the wait to Events.WriterBlocked.
// It reports false if the quota evicts the pipe's peer. For a pipe that is admitted or dialled by
// this end it reports true at once.
func (p *Pipe) awaitQuota() bool {
	if e := p.events; e != nil && e.WriterBlocked != nil && !p.account.TryCharge(0) {
		return p.waitReported(BudgetUnadmitted, 0, func() bool { return p.account.Charge(0) })
	}
	return p.account.Charge(0)
}

// charge is the number of bytes that one frame of the peer counts in the account of its pipe or
// handshake. The zero charge counts nothing.
type charge struct {
	context *Context
	account *quota.Account
	bytes   int
}

func (p *Pipe) newCharge() charge { return charge{context: p.context, account: p.account} }

// grow raises the charge to n bytes, and blocks until the quota has the additional bytes. Callers
// call it before they allocate the memory. If the charge has n bytes or more already, or c is nil
// or has no account, grow does nothing. If the peer is evicted, the charge stays as it was and the
// error matches ErrLimit.
func (c *charge) grow(n int) error {
	if c == nil || c.account == nil || n <= c.bytes {
		return nil
	}
	if !c.account.Charge(n - c.bytes) {
		return c.context.unadmittedError()
	}
	c.bytes = n
	return nil
}

// shrink lowers the charge to n bytes and gives the difference back to the quota. It does nothing
// if the charge has n bytes or fewer, or has no account.
func (c *charge) shrink(n int) {
	if c.account != nil && n < c.bytes {
		c.account.Release(c.bytes - n)
		c.bytes = n
	}
}

// release lowers the charge to 0 and gives its bytes back to the quota.
func (c *charge) release() { c.shrink(0) }

// windowBudget is the budget for the windows of sessions. Unlike other budgets it never grants more
// than its size.
type windowBudget struct{ *budget.Budget }

// Acquire implements [transport.Budget]. It acquires n bytes if they are available now, and reports
// whether it did.
func (b windowBudget) Acquire(n int) bool { return n <= b.Size() && b.TryAcquire(n) }
