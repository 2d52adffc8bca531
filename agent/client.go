package agent

import "fmt"

// clientMark is what a client says about itself on the list of the members.
const clientMark = "client"

func (p *peer) isClient() bool { return string(p.member.Extra) == clientMark }

// markClient says on the list that this worker is a client, if it is one.
func (c *Config) markClient() ([]byte, error) {
	switch {
	case !c.Client:
		return nil, nil
	case c.WorldSize > 0:
		return nil, fmt.Errorf("%w: a static group of %d has no clients", ErrConfig, c.WorldSize)
	}
	return []byte(clientMark), nil
}

// lostClient is called when a pipe to a client has ended. One that has died is removed,
// because nobody waits for it who would do so.
func (a *Agent) lostClient(p *peer) {
	if _, err := a.bury(a.base, p); err != nil && !a.isClosed() {
		a.log.Debug("client not removed", "client", p.info.Name, "error", err)
	}
}
