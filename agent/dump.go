package agent

import (
	"bytes"
	"fmt"
	"io"
	"time"
)

// Dump writes what the agent is doing as text: each call that has not ended, with whom
// it is, how old it is and what it waits for, and each request that is served here.
func (a *Agent) Dump(w io.Writer) error {
	var b bytes.Buffer
	now, m := time.Now(), a.Metrics()
	fmt.Fprintf(&b, "agent %s rank %d: %d of %d handlers running, %d requests waiting for one, %d pipes\n",
		a.self.Name, a.self.Rank, m.RunningHandlers, m.MaxHandlers, m.QueuedRequests, m.Pipes)
	calls := a.PendingCalls()
	fmt.Fprintf(&b, "calls: %d\n", len(calls))
	for _, c := range calls {
		fmt.Fprintf(&b, "  #%d %s to %s: %v, %s\n", c.ID, calledName(c.Type, c.Name), c.To, now.Sub(c.Begun), c.State)
	}
	served := a.ServedCalls()
	fmt.Fprintf(&b, "serving: %d\n", len(served))
	for _, r := range served {
		fmt.Fprintf(&b, "  #%d %s from %s: %v, %s\n", r.ID, calledName(r.Type, r.Name), r.From.Name, now.Sub(r.Begun), r.State)
	}
	_, err := b.WriteTo(w)
	return err
}
