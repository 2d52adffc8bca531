package agent

import (
	"context"
	"errors"
	"time"
)

// vigilDelay is how long a round goes on before those who have not come are looked
// after: most rounds are over by then.
const vigilDelay = 100 * time.Millisecond

// vigil looks after all who are missing from a round.
func (s *rounds) vigil(rd *round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range rd.guests {
		if !rd.guests[i].came && rd.members[i] != s.agent.identity() {
			// An agent that is closed has ended the round.
			s.agent.spawn(func() { s.watch(rd, i) })
		}
	}
}

// watch ends a round if a member dies before the round is over.
func (s *rounds) watch(rd *round, who int) {
	if err := s.agent.awaitDeath(rd.ctx, rd.members[who]); err != nil {
		s.fail(rd, who, err)
	}
}

// awaitDeath keeps a pipe to a worker, and returns an error when there can be none,
// because the worker has died or left; nil when ctx has ended. One that does not
// answer, as one that is stopped, may live.
func (a *Agent) awaitDeath(ctx context.Context, who identity) error {
	for ctx.Err() == nil {
		p, err := a.peerByIdentity(ctx, who)
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
