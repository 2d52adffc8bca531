package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// WorkerStatus is what one member of a group does, see Inspect.
type WorkerStatus struct {
	Worker      WorkerInfo
	Client      bool // see Config.Client
	Incarnation Incarnation
	URLs        []string // where it listens, as it has published them

	// Err is nil, or the reason for which the member did not answer: it matches ErrTimeout if it
	// was silent, as a process that is stopped, ErrUnreachable if no pipe could be opened, and
	// ErrRefused if the member rejected the pipe. The fields below are then zero.
	Err error

	Calls, Serving int          // calls of the member that have not ended; requests that it serves
	Sent, Received uint64       // bytes of payloads and tensors since it joined
	Pipes          []PipeStatus // its pipes to other members, by rank; at most 1,024

	// Metrics are the numbers of the extensions of the member, by name. Of numbers with the same name
	// it has that of the first extension, and at most 256, with names of at most 128 bytes.
	Metrics map[string]int64
}

// PipeStatus is one pipe of a member, seen from there.
type PipeStatus struct {
	Worker         WorkerInfo // the other end
	Address        string     // of the other end
	Path           string     // the transport and the channel for large tensors in host memory, such as "shm+cma"
	Calls, Serving int        // calls to the other end that have not ended; requests of the other end that are served
	Sent, Received uint64     // bytes of payloads and tensors
}

// maxInspected bounds the members that Inspect asks at once.
const maxInspected = 64

// Inspect returns the status of each member of a group, ordered by rank, without joining the group:
// it reads the member list from the store, and asks each member over a pipe of its own, within
// c.HandshakeTimeout. It changes nothing on the store and serves no store. A member that does not
// answer is in the result with the reason; one that has left its group is not in the result.
//
// Of c it uses Rendezvous, StoreOptions, Store, Group, Token, TLS, NewContext, Kinds, Limits,
// HandshakeTimeout and Logger; the other fields must be valid. Members reject a process that does
// not know the Token.
//
// The error is an *Error, and the result is then nil. It matches ErrConfig, ErrNoGroup if the store
// has no such group or the group still waits for workers, or is that of package store, of package
// pipe or of ctx, which matches ErrTimeout too after a deadline.
func Inspect(ctx context.Context, c Config) ([]WorkerStatus, error) {
	all, err := inspect(ctx, &c)
	if err != nil {
		return nil, &Error{Op: "inspect", Err: ctxerr.Wrap(err)}
	}
	return all, nil
}

// ErrNoGroup reports that the store has no group of that name, or that a static one still waits for
// workers.
var ErrNoGroup = roster.ErrNoGroup

func inspect(ctx context.Context, c *Config) (all []WorkerStatus, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Name, c.Rank, c.WorldSize, c.StoreOptions.Join = "", -1, 0, true
	c.setDefaults()
	a, err := newAgent(c) // which does not join: it is the client of the handshakes
	if err != nil {
		return nil, err
	}
	a.log = c.Logger // without a name of a worker
	defer func() { err = errtext.Join(err, a.Close()) }()
	if _, err := a.openStore(ctx, c); err != nil {
		return nil, err
	}
	if err := a.openContext(c); err != nil {
		return nil, err
	}
	members, err := roster.Read(ctx, a.store, c.Group)
	if err != nil {
		return nil, err
	}
	all = make([]WorkerStatus, len(members))
	asking := make(chan struct{}, maxInspected)
	var asked sync.WaitGroup
	for i, m := range members {
		asking <- struct{}{}
		asked.Go(func() {
			all[i] = a.newPeer(m).inspect(ctx)
			<-asking
		})
	}
	asked.Wait()
	if ctx.Err() != nil {
		return nil, ctxerr.Cause(ctx)
	}
	return all, nil
}

// inspect opens a pipe to the member, asks it for its status within the handshake timeout, and
// returns the status; if the member did not answer, Err of the result is the reason. inspect closes
// the pipe.
func (p *peer) inspect(ctx context.Context) WorkerStatus {
	s := WorkerStatus{Worker: p.info, Client: p.isClient(), Incarnation: Incarnation(p.member.Incarnation), URLs: p.member.URLs}
	ctx, cancel := context.WithTimeout(ctx, p.agent.handshakeTimeout)
	defer cancel()
	var got *wire.Status
	s.Err = p.dial(ctx, func(ctx context.Context, pp *pipe.Pipe) (err error) {
		defer pp.Abort(nil)
		got, err = p.readStatus(ctx, pp)
		return err
	})
	if errors.Is(s.Err, context.DeadlineExceeded) {
		s.Err = fmt.Errorf("%w: no answer within %v", ErrTimeout, p.agent.handshakeTimeout)
	}
	if s.Err != nil {
		return s
	}
	s.Calls, s.Serving, s.Sent, s.Received = got.Calls, got.Serving, got.Sent, got.Received
	for _, q := range got.Pipes {
		s.Pipes = append(s.Pipes, PipeStatus{
			Worker: WorkerInfo{Name: q.Worker, Rank: q.Rank}, Address: q.Address, Path: q.Path,
			Calls: q.Calls, Serving: q.Serving, Sent: q.Sent, Received: q.Received,
		})
	}
	for _, m := range got.Metrics {
		if s.Metrics == nil {
			s.Metrics = map[string]int64{}
		}
		s.Metrics[m.Name] = m.Value
	}
	return s
}

// readStatus performs the handshake on the pipe pp, which this process has opened to the member,
// and receives the status of the member. The error is that of the handshake, of the pipe or of ctx,
// or matches ErrProtocol if the member sends something else. The pipe stays open.
func (p *peer) readStatus(ctx context.Context, pp *pipe.Pipe) (*wire.Status, error) {
	if _, err := p.agent.dialHandshake(ctx, pp, p); err != nil {
		return nil, err
	}
	in, err := pp.Next(ctx)
	if err != nil {
		return nil, err
	}
	return wire.DecodeStatus(in.Descriptor().Metadata)
}

// isInspector reports whether the client that sent h is no member, and only asks for the status.
func isInspector(h *wire.Hello) bool { return h.From.Name == "" }

// errInspected ends the handshake of a client that has asked for the status.
var errInspected = fmt.Errorf("%w: the status has been sent", pipe.ErrClosed)

// sendStatus ends the handshake with a client that is no member, by sending the status of this
// worker. It always returns an error: errInspected if the status was sent, and otherwise that of
// encoding, of the pipe or of ctx.
func (a *Agent) sendStatus(ctx context.Context, pp *pipe.Pipe) error {
	data, err := wire.EncodeStatus(a.status())
	if err != nil {
		return err
	}
	if err := sendValue(ctx, pp, &wire.Done{}); err != nil {
		return err
	}
	return cmp.Or(pp.Write(ctx, &pipe.Message{Metadata: data}), errInspected)
}

// status returns the status of this worker, with at most wire.MaxPipes pipes, by rank. The counters
// are read one after the other.
func (a *Agent) status() *wire.Status {
	m := a.Metrics()
	s := &wire.Status{
		Calls: m.PendingCalls, Serving: m.ServedCalls,
		Sent: a.stats.sentBytes.Load(), Received: a.stats.receivedBytes.Load(),
	}
	a.conns.Range(func(key, _ any) bool {
		c := key.(*conn)
		if c.owner == a.selfPeer {
			return true
		}
		traffic, plan := c.pipe.Stats(), c.pipe.Plan()
		q := wire.PipeStatus{
			Worker: c.peer.Name, Rank: c.peer.Rank, Address: c.pipe.RemoteAddr(), Path: plan.Transport,
			Sent: traffic.Sent.Bytes, Received: traffic.Received.Bytes,
		}
		if channel, ok := plan.Channel(device.CPU(), device.CPU()); ok {
			q.Path += "+" + channel
		}
		c.calls.mu.Lock()
		q.Calls = len(c.calls.pending)
		c.calls.mu.Unlock()
		c.mu.Lock()
		q.Serving = len(c.serving)
		c.mu.Unlock()
		s.Sent, s.Received = s.Sent+q.Sent, s.Received+q.Received
		s.Pipes = append(s.Pipes, q)
		return true
	})
	slices.SortFunc(s.Pipes, func(x, y wire.PipeStatus) int { return cmp.Compare(x.Rank, y.Rank) })
	s.Pipes = s.Pipes[:min(len(s.Pipes), wire.MaxPipes)]
	s.Metrics = a.extensionMetrics()
	return s
}

// extensionMetrics returns the numbers of the extensions for wire.Status, by name. It returns none
// before this worker has joined.
func (a *Agent) extensionMetrics() (all []wire.Metric) {
	select {
	case <-a.joined:
	default:
		return nil // the extensions may not have been started
	}
	known := map[string]bool{}
	for _, e := range a.extensions {
		for name, n := range e.Metrics() {
			if len(name) <= wire.MaxMetricName && !known[name] {
				known[name] = true
				all = append(all, wire.Metric{Name: name, Value: n})
			}
		}
	}
	slices.SortFunc(all, func(x, y wire.Metric) int { return strings.Compare(x.Name, y.Name) })
	return all[:min(len(all), wire.MaxMetrics)]
}
