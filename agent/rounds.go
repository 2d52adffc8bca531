package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// rounds is what this worker leads: of those who do something together, the one of
// the lowest rank has all come to it.
type rounds struct {
	agent  *Agent
	mu     sync.Mutex
	next   map[roundKey]uint64 // of the sets that this worker is in; their seq is 0
	open   map[roundKey]*round
	failed fifo.Queue[roundKey]
}

// keepFailed is how many rounds that failed are remembered for those who come late.
const keepFailed = 1 << 10

type roundKey struct {
	set [32]byte
	op  string
	seq uint64
}

// round is one gathering. All of it is under the mutex of rounds.
type round struct {
	key     roundKey
	members []identity
	guests  []guest // by the index of the member
	missing int
	failure *groupFailure
	over    context.CancelFunc // ends ctx
	ctx     context.Context    // of those who look after the missing ones
	timer   *time.Timer
}

// guest is a member that has come, or has been told that it need not.
type guest struct {
	came, told bool
	seat
}

// seat is what a member has brought, until it is answered.
type seat struct {
	request *Request
	value   packed
	stop    func() bool // looking after the request
}

func (s *rounds) init(a *Agent) {
	s.agent, s.next, s.open = a, map[roundKey]uint64{}, map[roundKey]*round{}
}

// number is that of the next round of a set.
func (s *rounds) number(key roundKey) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.next[key]
	s.next[key]++
	return n
}

// missing is the names of those who have not come to a round.
func (s *rounds) missing(key roundKey) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rd := s.open[key]; rd != nil {
		return rd.absent()
	}
	return nil
}

func (rd *round) absent() (names []string) {
	for i, m := range rd.members {
		if !rd.guests[i].came {
			names = append(names, m.Name)
		}
	}
	return names
}

// Open implements Handler.
func (s *rounds) Open(r *Request) (Task, error) {
	t := &arrivalTask{rounds: s}
	return t, r.Decode(&t.groupRequest)
}

type arrivalTask struct {
	rounds *rounds
	groupRequest
}

// Run implements Task. It does not wait for the others. It is short, since all the
// handlers of this worker may be at work for long.
func (t *arrivalTask) Run(ctx context.Context, r *Request) {
	s := t.rounds
	i := slices.Index(t.Members, r.conn.owner.identity())
	if i < 0 || t.Members[0] != s.agent.identity() {
		_ = r.Fail(fmt.Errorf("%w: not a gathering that %s leads for %s", ErrProtocol, s.agent.self, r.From()))
		return
	}
	s.mu.Lock()
	rd := s.enter(&t.groupRequest)
	g := &rd.guests[i]
	switch {
	case g.came:
		s.mu.Unlock()
		_ = r.Fail(fmt.Errorf("%w: %s came twice to %s %d", ErrProtocol, r.From(), t.Op, t.Seq))
	case rd.failure != nil:
		answer := groupReply{Failure: rd.failure}
		g.told = true
		s.forget(rd)
		s.mu.Unlock()
		_ = r.Reply(&answer)
	default:
		g.came, g.request, g.value = true, r, t.Value
		g.stop = context.AfterFunc(ctx, func() { s.fail(rd, i, context.Cause(ctx)) })
		rd.missing--
		last := rd.missing == 0
		if last {
			delete(s.open, rd.key)
		}
		s.mu.Unlock()
		if last {
			s.complete(rd)
		}
	}
}

// enter finds the round, or begins it. The caller holds mu.
func (s *rounds) enter(q *groupRequest) *round {
	key := q.key()
	if rd := s.open[key]; rd != nil {
		return rd
	}
	rd := &round{key: key, members: q.Members, guests: make([]guest, len(q.Members)), missing: len(q.Members)}
	rd.ctx, rd.over = context.WithCancel(s.agent.base)
	rd.timer = time.AfterFunc(vigilDelay, func() { s.vigil(rd) })
	s.open[key] = rd
	return rd
}

// complete answers all with the values of all.
func (s *rounds) complete(rd *round) {
	answer := groupReply{Values: make([]packed, len(rd.guests))}
	for i := range rd.guests {
		answer.Values[i] = rd.guests[i].value
	}
	rd.dismiss(rd.clear(), &answer)
}

// fail ends a round for all, because of one member.
func (s *rounds) fail(rd *round, who int, cause error) {
	s.mu.Lock()
	if s.open[rd.key] != rd || rd.failure != nil {
		s.mu.Unlock()
		return
	}
	rd.failure = blame(rd.members[who].Name, cause)
	if names := rd.absent(); rd.failure.Code == groupTimeout && len(names) > 0 {
		rd.failure.Worker, rd.failure.Text = names[0], fmt.Sprintf("followers %v did not come: %v", names, cause)
	}
	rd.guests[who].told = true
	for i := range rd.guests {
		rd.guests[i].told = rd.guests[i].told || rd.guests[i].came
	}
	s.failed.Push(rd.key)
	if s.failed.Len() > keepFailed {
		delete(s.open, s.failed.Pop())
	}
	s.forget(rd)
	seats := rd.clear()
	s.mu.Unlock()
	rd.dismiss(seats, &groupReply{Failure: rd.failure})
}

// forget drops a round that failed, once all have been told. The caller holds mu.
func (s *rounds) forget(rd *round) {
	for i := range rd.guests {
		if !rd.guests[i].told {
			return
		}
	}
	delete(s.open, rd.key)
}

// clear takes out what the members have brought: a round that failed may be remembered
// for long. The caller holds mu, or is the only one who knows the round.
func (rd *round) clear() []seat {
	seats := make([]seat, len(rd.guests))
	for i := range rd.guests {
		seats[i], rd.guests[i].seat = rd.guests[i].seat, seat{}
	}
	return seats
}

// dismiss answers those who have come.
func (rd *round) dismiss(seats []seat, answer *groupReply) {
	rd.timer.Stop()
	rd.over()
	// The first is this worker itself, who may close the agent as soon as it knows.
	for _, s := range slices.Backward(seats) {
		if s.request != nil {
			s.stop()
			_ = s.request.Reply(answer) // an error is the answer then
		}
	}
}
