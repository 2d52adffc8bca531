package agent

import (
	"context"
	"fmt"
	"time"
)

// clientMark is what a client says about itself on the list of the members.
const clientMark = "client"

func (p *peer) isClient() bool { return string(p.member.Extra) == clientMark }

// checkClient refuses a client of a static group, which the store may have said it is.
func (c *Config) checkClient() error {
	if c.Client && c.WorldSize > 0 {
		return fmt.Errorf("%w: a static group of %d has no clients", ErrConfig, c.WorldSize)
	}
	return nil
}

// mark is what this worker says about itself on the list.
func (c *Config) mark() []byte {
	if c.Client {
		return []byte(clientMark)
	}
	return nil
}

// clientReturns is how long a client that has lost its pipe has to open another one.
const clientReturns = 2 * time.Second

// lostClient is called when a pipe to a client has ended. One that has died is removed,
// because nobody waits for it who would do so. One that lives may be about to come back.
func (a *Agent) lostClient(p *peer) {
	back := time.NewTimer(clientReturns)
	defer back.Stop()
	select {
	case <-back.C:
	case <-p.life.Done(): // it has left, or this agent is closed
		return
	}
	ctx, cancel := context.WithTimeout(a.base, a.handshakeTimeout)
	defer cancel()
	if _, err := a.bury(ctx, p); err != nil && !a.isClosed() {
		a.log.Debug("client not removed", "client", p.info.Name, "error", err)
	}
}
