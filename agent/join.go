package agent

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// join listens, finds the other workers, and lets them in.
func (a *Agent) join(ctx context.Context, c *Config) error {
	if err := a.openStore(ctx, c); err != nil {
		return err
	}
	if err := c.checkClient(); err != nil {
		return err
	}
	if err := a.listen(ctx, c); err != nil {
		return err
	}
	self := roster.Member{
		Name: c.Name, Rank: c.Rank, Incarnation: a.incarnation,
		URLs: a.listener.URLs(), MinVersion: protocol, MaxVersion: protocol,
		Replace: c.Replace, Extra: c.mark(),
	}
	var err error
	if c.WorldSize > 0 {
		a.roster, err = roster.JoinStatic(ctx, a.store, c.Group, self, c.WorldSize)
	} else {
		a.roster, err = roster.JoinDynamic(ctx, a.store, c.Group, self)
	}
	if err != nil {
		return err
	}
	self = a.roster.Self()
	a.self = WorkerInfo{Name: self.Name, Rank: self.Rank}
	a.own = a.makePeer(self)
	a.update()
	close(a.joined)
	if c.WorldSize == 0 {
		a.spawn(a.watch)
	}
	return nil
}

// openStore opens the store, which for env:// also says who this worker is.
func (a *Agent) openStore(ctx context.Context, c *Config) error {
	if c.Store != nil {
		a.store = c.Store
		return nil
	}
	o := c.StoreOptions
	addr, found := strings.CutPrefix(c.Rendezvous, "tcp://")
	if !found {
		addr = ""
	}
	if strings.HasPrefix(c.Rendezvous, "env://") {
		env, err := store.FromEnviron()
		if err != nil {
			return err
		}
		c.Rank, c.WorldSize = env.Rank, env.WorldSize
		addr, o.Join = env.Addr, o.Join || env.Served
	}
	o.Rank, o.WorldSize = max(c.Rank, 0), c.WorldSize
	if err := a.checkStore(c, &o, addr); err != nil {
		return err
	}
	s, err := store.Open(ctx, c.Rendezvous, o)
	a.store, a.ownStore = s, err == nil
	return err
}

// listen makes what other workers reach this one by.
func (a *Agent) listen(ctx context.Context, c *Config) error {
	urls := c.Listen
	if len(urls) == 0 {
		urls = []string{"uv://127.0.0.1:0", "shm://"}
	}
	if err := a.checkListen(c, urls); err != nil {
		return err
	}
	a.greetings.most = max(c.Limits.Greetings, c.WorldSize) // all members may come at once
	make := c.NewContext
	if make == nil {
		make = func(o pipe.Options) (*pipe.Context, error) { return newContext(o, silence) }
	}
	var err error
	a.pipes, err = make(pipe.Options{
		Name:    c.Name,
		Dialect: pipe.DialectNative,
		Limits: pipe.Limits{
			MessageBytes: c.Limits.MessageBytes, TensorBytes: c.Limits.MessageBytes, PayloadBytes: c.Limits.MessageBytes,
			PipeBytesInFlight: inFlight(c.Limits.CallBytes),
			UnadmittedBytes:   c.Limits.UnadmittedBytes,
		},
		Kinds:  c.Kinds,
		Logger: c.Logger,
	})
	if err != nil {
		return err
	}
	if a.listener, err = a.pipes.Listen(ctx, urls...); err != nil {
		return err
	}
	a.spawn(a.accept)
	return nil
}

// inFlight is what a pipe may have on its way: calls that wait for memory at the other
// end, and room for answers beside them, by which that memory becomes free.
func inFlight(callBytes int) int { return max(1<<30, 4*min(callBytes, math.MaxInt/4)) }

// watch keeps up with who is in a dynamic group.
func (a *Agent) watch() {
	err := a.roster.Watch(a.base, func(roster.Change) { a.update() })
	switch {
	case a.isClosed():
	case errors.Is(err, ErrRemoved):
		a.log.Error("this worker is not in the group any more: join again", "group", a.group, "error", err)
	case err != nil:
		a.log.Warn("changes of the group are not noticed any more", "error", err)
	}
}

// Bounds of what a store is told that does not answer: by Shutdown, and by Close.
const (
	leaveTimeout  = 5 * time.Second
	vanishTimeout = time.Second
)

// leave tells the store that this worker is gone.
func (a *Agent) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := a.roster.Leave(ctx); err != nil && !errors.Is(err, roster.ErrRemoved) {
		return err
	}
	return nil
}

// vanish is leave for who goes whatever the store says.
func (a *Agent) vanish() error {
	if a.roster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), vanishTimeout)
	defer cancel()
	if err := a.roster.LeaveNow(ctx); err != nil && !errors.Is(err, roster.ErrRemoved) {
		a.log.Warn("the store still lists this worker, which has gone", "group", a.group, "rank", a.self.Rank, "error", err)
	}
	return nil
}
