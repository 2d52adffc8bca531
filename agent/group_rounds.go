package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// rounds is the rounds of which this worker is the leader, and the numbers of those that it takes
// part in. The leader of a round is the worker with the lowest rank.
type rounds struct {
	agent  *Agent
	mu     sync.Mutex
	next   map[roundKey]uint64 // number of the next round of each set and operation; seq of the keys is 0
	open   map[roundKey]*round
	failed fifo.Queue[roundKey]
}

// maxFailedRounds bounds the failed rounds that are kept, so that workers that contribute later get
// the failure.
const maxFailedRounds = 1 << 10

type roundKey struct {
	set [32]byte
	op  string
	seq uint64
}

// round is one round at its leader, guarded by the mutex of rounds.
type round struct {
	key     roundKey
	members []wire.Identity
	states  []memberState // by index in members
	missing int
	failure *wire.GroupFailure
	cancel  context.CancelFunc // of ctx
	ctx     context.Context    // of the liveness monitors
	timer   *time.Timer
}

// memberState is the progress of one member of a round.
type memberState struct {
	arrived, notified bool
	contribution
}

// contribution is the request of one member, until the leader replies.
type contribution struct {
	request *Request
	value   wire.Packed
	stop    func() bool // stops watching the request's context
}

// number returns the number of this worker's next round of the set and operation in key, and
// counts it as used. key.seq must be 0.
func (s *rounds) number(key roundKey) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.next[key]
	s.next[key]++
	return n
}

// missing returns the names of the members that have not contributed to the round with this key, if
// this worker leads the round and keeps it: while it is open, and for a time after it has failed.
// It returns nil if none is missing, or if there is no such round here.
func (s *rounds) missing(key roundKey) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rd := s.open[key]; rd != nil {
		return rd.missingNames()
	}
	return nil
}

func (rd *round) missingNames() (names []string) {
	for i, m := range rd.members {
		if !rd.states[i].arrived {
			names = append(names, m.Name)
		}
	}
	return names
}

// Open implements Handler: it decodes the contribution of a member and returns the task that adds
// it to its round. The error is that of decoding.
func (s *rounds) Open(r *Request) (Task, error) {
	t := &contributionTask{rounds: s}
	return t, r.Decode(&t.GroupRequest)
}

type contributionTask struct {
	rounds *rounds
	wire.GroupRequest
}

// Run implements Task. It stores the contribution of one member, opens the round if this is the
// first contribution, and returns without waiting for the other members. The last contribution
// completes the round: Run then sends the replies to all members. If the round is kept because it
// has failed, Run replies with the failure. It replies with an error that matches ErrProtocol if
// the member has contributed to the open or kept round before, or if this worker does not lead the
// round. Run does not block, because all handler slots of this worker may be occupied for long.
func (t *contributionTask) Run(ctx context.Context, r *Request) {
	s := t.rounds
	i := slices.Index(t.Members, r.conn.owner.identity())
	if i < 0 || t.Members[0] != s.agent.identity() {
		_ = r.Fail(fmt.Errorf("%w: %s is not the leader of a round with %s", ErrProtocol, s.agent.self, r.From()))
		return
	}
	key := keyOf(&t.GroupRequest)
	s.mu.Lock()
	rd := s.open[key]
	if rd == nil { // the first contribution
		rd = &round{key: key, members: t.Members, states: make([]memberState, len(t.Members)), missing: len(t.Members)}
		rd.ctx, rd.cancel = context.WithCancel(s.agent.base)
		rd.timer = time.AfterFunc(monitorDelay, func() { s.monitorMissing(rd) })
		s.open[key] = rd
	}
	g := &rd.states[i]
	switch {
	case g.arrived:
		s.mu.Unlock()
		_ = r.Fail(fmt.Errorf("%w: second contribution of %s to %s %d", ErrProtocol, r.From(), t.Op, t.Seq))
	case rd.failure != nil:
		answer := wire.GroupReply{Failure: rd.failure}
		g.notified = true
		s.removeIfNotified(rd)
		s.mu.Unlock()
		_ = r.Reply(&answer)
	default:
		g.arrived, g.request, g.value = true, r, t.Value
		g.stop = context.AfterFunc(ctx, func() { s.fail(rd, i, ctxerr.Cause(ctx)) })
		rd.missing--
		last := rd.missing == 0
		if last {
			delete(s.open, rd.key)
		}
		s.mu.Unlock()
		if last {
			answer := wire.GroupReply{Values: make([]wire.Packed, len(rd.states))}
			for i := range rd.states {
				answer.Values[i] = rd.states[i].value
			}
			rd.reply(rd.takeContributions(), &answer)
		}
	}
}

// fail ends the round rd with cause, an error of the member with the index member, and sends the
// failure to all members that have contributed. Other members that contribute while the failed
// round is kept get the same failure. fail does nothing if the round has ended. The caller must not
// hold s.mu.
func (s *rounds) fail(rd *round, member int, cause error) {
	s.mu.Lock()
	if s.open[rd.key] != rd || rd.failure != nil {
		s.mu.Unlock()
		return
	}
	rd.failure = groupFailure(rd.members[member].Name, cause)
	if names := rd.missingNames(); rd.failure.Code == wire.GroupTimeout && len(names) > 0 {
		missing := MissingError{Workers: names, Err: cause}
		rd.failure.Worker, rd.failure.Text = names[0], missing.Error()
	}
	rd.states[member].notified = true
	for i := range rd.states {
		rd.states[i].notified = rd.states[i].notified || rd.states[i].arrived
	}
	s.failed.Push(rd.key)
	if s.failed.Len() > maxFailedRounds {
		delete(s.open, s.failed.Pop())
	}
	s.removeIfNotified(rd)
	contributions := rd.takeContributions()
	s.mu.Unlock()
	rd.reply(contributions, &wire.GroupReply{Failure: rd.failure})
}

// removeIfNotified removes the failed round rd from the open rounds if all its members are marked
// as notified of the failure; otherwise it does nothing. The caller holds s.mu.
func (s *rounds) removeIfNotified(rd *round) {
	for i := range rd.states {
		if !rd.states[i].notified {
			return
		}
	}
	delete(s.open, rd.key)
}

// takeContributions clears the contributions in the round and returns them, by the index of the
// member; a member that has not contributed has a zero one. So a failed round, which may be kept
// for long, does not keep their memory. The caller holds the mutex of rounds, or has removed the
// round from the open ones.
func (rd *round) takeContributions() []contribution {
	contributions := make([]contribution, len(rd.states))
	for i := range rd.states {
		contributions[i], rd.states[i].contribution = rd.states[i].contribution, contribution{}
	}
	return contributions
}

// reply sends answer to each member with a request in contributions, to this worker last, and ends
// the timer and the liveness monitors of the round. It is called once, without the mutex of rounds.
func (rd *round) reply(contributions []contribution, answer *wire.GroupReply) {
	rd.timer.Stop()
	rd.cancel()
	// This worker, the first, is last: it may close the agent as soon as it has the answer.
	for _, s := range slices.Backward(contributions) {
		if s.request != nil {
			s.stop()
			_ = s.request.Reply(answer) // an error becomes the reply
		}
	}
}

// monitorDelay is the age at which a round begins to monitor its missing members; most rounds are
// over by then.
const monitorDelay = 100 * time.Millisecond

// monitorMissing starts a goroutine for each member, other than this worker, that has not
// contributed to the round rd. The goroutine monitors that the member is alive, and fails the round
// if the member is dead. It ends when the round ends. monitorMissing locks s.mu.
func (s *rounds) monitorMissing(rd *round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range rd.states {
		if !rd.states[i].arrived && rd.members[i] != s.agent.identity() {
			// If the agent is closed, spawn fails and the round has ended.
			s.agent.spawn(func() {
				if err := s.agent.monitorPeer(rd.ctx, rd.members[i]); err != nil {
					s.fail(rd, i, err)
				}
			})
		}
	}
}

// monitorPeer keeps a pipe open to the worker with this identity. It returns nil when ctx ends, and
// an error when the worker cannot be found or no pipe to it can be opened, as after it has died or
// left. A worker that does not answer, for example because it is stopped, counts as alive.
func (a *Agent) monitorPeer(ctx context.Context, id wire.Identity) error {
	for ctx.Err() == nil {
		p, err := a.peerByIdentity(ctx, id)
		var c *conn
		if err == nil {
			c, err = p.connect(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, context.DeadlineExceeded):
			continue
		case err != nil:
			return err
		}
		select {
		case <-c.down:
		case <-ctx.Done():
		}
	}
	return nil
}
