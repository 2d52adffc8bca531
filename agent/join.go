package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/devicemap"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// join opens the store, listens, joins the group that c describes, learns its members, and starts
// the extensions; from then on other workers can open pipes to this one. After an error the caller
// must close the agent, which may hold an open store, pipe context or listener, or extensions.
func (a *Agent) join(ctx context.Context, c *Config) error {
	addr, err := a.openStore(ctx, c)
	if err != nil {
		return err
	}
	if a.route == "" && addr != "" && len(c.Listen) == 0 {
		return fmt.Errorf("%w: set Listen to an address of this machine that the other workers reach: the store at tcp://%s has a wildcard as its host, or no route leads to it", ErrConfig, addr)
	}
	if c.Client && c.WorldSize > 0 { // WorldSize may come from the environment
		return fmt.Errorf("%w: a static group of %d has no clients", ErrConfig, c.WorldSize)
	}
	if err := a.listen(ctx, c); err != nil {
		return err
	}
	urls, err := a.publishedURLs()
	if err != nil {
		return err
	}
	self := roster.Member{
		Name: c.Name, Rank: c.Rank, Incarnation: a.incarnation,
		URLs: urls, MinVersion: wire.Version, MaxVersion: wire.Version,
		Replace: c.Replace,
		Waiting: func(missing string) { a.log.Info("waiting for other workers", "group", c.Group, "missing", missing) },
	}
	if self.Extra, err = wire.EncodeMember(wire.NewMember(c.Client, a.devices.node)); err != nil {
		return withKind(ErrConfig, fmt.Errorf("Devices and DeviceMaps: %w", err))
	}
	if c.WorldSize > 0 {
		a.roster, err = roster.JoinStatic(ctx, a.store, c.Group, self, c.WorldSize)
	} else {
		a.roster, err = roster.JoinDynamic(ctx, a.store, c.Group, self)
	}
	if errors.Is(err, roster.ErrMember) { // an invalid Rank, for example
		err = withKind(ErrConfig, err)
	}
	if err != nil {
		return err
	}
	self = a.roster.Self()
	a.self = WorkerInfo{Name: self.Name, Rank: self.Rank}
	a.selfPeer = a.newPeer(self)
	a.selfPeer.listed, a.selfPeer.state = true, peerPresent
	a.update()
	if err := a.checkDeviceMaps(c.WorldSize > 0); err != nil {
		return err
	}
	if err := a.startExtensions(c.Extensions); err != nil {
		return err
	}
	close(a.joined)
	if c.WorldSize == 0 {
		a.spawn(a.watchGroup)
	}
	return nil
}

// openStore sets the store of the agent: Config.Store, which remains the caller's, or the store
// that Config.Rendezvous names, which Close closes. For a store over TCP it also sets a.route, the
// address from which this machine reaches the store, or "" if that is unknown, and returns the host
// and port of the store; for other stores it returns "". For env:// it sets Rank and WorldSize of c
// from the environment. The error is that of package store, or matches ErrConfig if this worker
// would serve the store to other machines without a token, TLS or Insecure.
func (a *Agent) openStore(ctx context.Context, c *Config) (addr string, err error) {
	if c.Store != nil {
		a.store = c.Store
		return "", nil
	}
	o := c.StoreOptions
	addr, found := strings.CutPrefix(c.Rendezvous, "tcp://")
	if !found {
		addr = ""
	}
	o.Join = o.Join || c.Rank < 0 // only rank 0 serves it
	if strings.HasPrefix(c.Rendezvous, "env://") {
		env, err := store.FromEnviron()
		if err != nil {
			return "", err
		}
		c.Rank, c.WorldSize = env.Rank, env.WorldSize
		addr, o.Join = env.Addr, o.Join || env.Served
	}
	o.Rank, o.WorldSize = max(c.Rank, 0), c.WorldSize
	serves := addr != "" && o.Rank == 0 && !o.Join
	if serves {
		e := exposure{
			"serving the store", "any process that reaches the store at this address can become a member of the group",
			"tcp://" + cmp.Or(o.Listen, addr), isLoopback(cmp.Or(o.Listen, addr)),
		}
		if err := a.checkAccess(c, e); err != nil {
			return "", err
		}
	}
	waiting := time.AfterFunc(time.Second, func() { a.log.Info("waiting for the store", "rendezvous", c.Rendezvous) })
	s, err := store.Open(ctx, c.Rendezvous, o)
	waiting.Stop()
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "", fmt.Errorf("%w (if another process serves the store, set StoreOptions.Join, or a Rank of -1 in a dynamic group)", err)
	case err != nil:
		return "", err
	}
	a.store, a.ownStore = s, true
	a.route = routeTo(ctx, addr)
	if serves && a.route == "" {
		a.route = routeTo(ctx, o.Listen)
	}
	return addr, nil
}

// openContext creates the pipe context of the agent with Config.NewContext, or its default. Close
// closes it. The error is that of creating it.
func (a *Agent) openContext(c *Config) error {
	make := c.NewContext
	if make == nil {
		make = func(o pipe.Options) (*pipe.Context, error) {
			profile := tensorpipe.DefaultProfile()
			if c.TLS != nil {
				profile = profile.WithTLS(c.TLS)
			}
			return newContext(profile, o, ackTimeout)
		}
	}
	var err error
	a.pipes, err = make(pipe.Options{
		Name:    c.Name,
		Dialect: pipe.DialectNative,
		Limits: pipe.Limits{
			MessageBytes: c.Limits.MessageBytes, TensorBytes: c.Limits.MessageBytes, PayloadBytes: c.Limits.MessageBytes,
			// Calls that wait for memory at the other end must leave bytes for replies, which free
			// it, and so must a value of a stream that the other end does not read.
			PipeBytesInFlight: addSaturated(max(1<<30, 4*min(c.Limits.CallBytes, math.MaxInt/4)), c.Limits.MessageBytes),
			UnadmittedBytes:   c.Limits.UnadmittedBytes,
		},
		Kinds:  c.Kinds,
		Logger: c.Logger,
	})
	return err
}

// addSaturated returns the sum of two sizes, or math.MaxInt if it is larger than that.
func addSaturated(a, b int) int { return a + min(b, math.MaxInt-a) }

// listen creates the pipe context, listens at the addresses of c and starts to accept pipes on
// another goroutine. Close closes the pipe context, and with it the listener. The error is that of
// package pipe, or matches ErrConfig if other machines can reach an address and c has no token, no
// TLS and no Insecure.
func (a *Agent) listen(ctx context.Context, c *Config) error {
	urls := c.Listen
	if len(urls) == 0 {
		urls = defaultListen(a.route)
	}
	a.handshakes.max = max(c.Limits.MaxHandshakes, c.WorldSize) // all members may connect at once
	if err := a.openContext(c); err != nil {
		return err
	}
	for _, u := range urls {
		local, err := a.pipes.IsLocal(u)
		if err != nil {
			return err
		}
		e := exposure{"listening", "any process that reaches this address can call the functions served here", u, local}
		if err := a.checkAccess(c, e); err != nil {
			return err
		}
	}
	var err error
	if a.listener, err = a.pipes.Listen(ctx, urls...); err != nil {
		return err
	}
	a.spawn(a.accept)
	return nil
}

// watchGroup updates the peers at each change of a dynamic group until the agent is closed. If it
// ends earlier, it logs the reason.
func (a *Agent) watchGroup() {
	err := a.roster.Watch(a.base, func(roster.Change) { a.update() })
	switch {
	case a.isClosed():
	case errors.Is(err, ErrRemoved):
		a.log.Error("this worker is not in the group any more: join again", "group", a.group, "error", err)
	case err != nil:
		a.log.Warn("changes of the group are no longer watched", "error", err)
	}
}

// Bounds of leaving the group if the store does not answer.
const (
	leaveTimeout      = 5 * time.Second // for Shutdown
	closeLeaveTimeout = time.Second     // for Close
)

// leaveGroup removes this worker from the group on the store, within leaveTimeout. It is no error
// if another worker has done so. Other errors are those of package roster.
func (a *Agent) leaveGroup() error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := a.roster.Leave(ctx); err != nil && !errors.Is(err, roster.ErrRemoved) {
		return err
	}
	return nil
}

// leaveOnClose removes this worker from the group on the store, for Close. It blocks for at most
// closeLeaveTimeout, and does not wait for an unreachable store to come back. It logs an error of
// the store and always returns nil. It does nothing if the agent has not joined.
func (a *Agent) leaveOnClose() error {
	if a.roster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeLeaveTimeout)
	defer cancel()
	if err := a.roster.LeaveNow(ctx); err != nil && !errors.Is(err, roster.ErrRemoved) {
		a.log.Warn("the store still lists this worker, which has left", "group", a.group, "rank", a.self.Rank, "error", err)
	}
	return nil
}

// ackTimeout is how long bytes sent to a worker may stay unacknowledged before it counts as dead.
// It is the time that keepalive takes on an idle pipe; keepalive does not apply while calls are in
// flight.
const ackTimeout = 30 * time.Second

// newContext creates a pipe context with the options o and with the transports and channels of p.
// Transports whose peers may vanish without notice get ackTimeout, see transport.AckTimeouter:
// otherwise calls without a timeout would wait until the kernel stops retransmitting, about a
// quarter of an hour. p is not changed.
func newContext(p tensorpipe.Profile, o pipe.Options, ackTimeout time.Duration) (*pipe.Context, error) {
	o.Transports = slices.Clone(p.Transports) // the lanes of channels use them too
	for i, e := range o.Transports {
		if t, ok := e.Transport.(transport.AckTimeouter); ok {
			o.Transports[i].Transport = t.WithAckTimeout(ackTimeout)
		}
	}
	return p.NewContext(o)
}

// Errors of joining a group and of staying in it, beside ErrConfig and the errors of package
// store.
var (
	// ErrName reports an invalid name of a worker or of the group.
	ErrName = roster.ErrName

	// ErrWorldSize reports that workers do not agree on the size of the group, or that a
	// rank is not below it.
	ErrWorldSize = roster.ErrWorldSize

	// ErrDuplicateName and ErrDuplicateRank report that two workers have the same name or rank.
	// For a worker that joins a complete group the error is ErrJoined.
	ErrDuplicateName = roster.ErrDuplicateName
	ErrDuplicateRank = roster.ErrDuplicateRank

	// ErrMixed reports that some workers want a static group, others a dynamic one.
	ErrMixed = roster.ErrMixed

	// ErrVersion reports that two workers have no version of the agents' protocol in common, or
	// that a value on the store was written by a later version.
	ErrVersion = roster.ErrVersion

	// ErrJoined reports that another incarnation of the worker has joined and not left. If it
	// has died, a static group keeps it: form a group under another name.
	ErrJoined = roster.ErrRejoin

	// ErrStoreLost reports that the store has lost the group's keys, as after a restart.
	ErrStoreLost = roster.ErrLost

	// ErrRemoved reports that this worker is no longer in its dynamic group: another worker
	// removed it, see Agent.Remove, or replaced it, see Config.Replace.
	ErrRemoved = roster.ErrRemoved

	// ErrDeviceMaps reports that the device maps of the workers do not fit their devices. All workers
	// of a static group get the same error, and the worker that joins a dynamic one.
	ErrDeviceMaps = devicemap.ErrMaps

	// ErrStatic reports that members of a static group cannot be removed.
	ErrStatic = roster.ErrStatic
)
