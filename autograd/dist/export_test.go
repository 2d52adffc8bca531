package dist

import (
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Messages that a peer may send, for tests.
type (
	Gradients      = gradients
	Gradient       = gradient
	PassID         = passID
	PassReport     = passReport
	PassChange     = passChange
	FindRequest    = findRequest
	SettleRequest  = settleRequest
	CleanupRequest = cleanupRequest
	CleanedContext = cleanedContext
)

var (
	GradientsMessage = gradientsMessage
	FindMessage      = findMessage
	SettleMessage    = settleMessage
	CleanupMessage   = cleanupMessage
)

// CheckReports returns the error of a pass whose workers have sent these reports.
func CheckReports(all ...PassReport) error {
	w := waits{}
	for _, r := range all {
		if err := w.add(r); err != nil {
			return err
		}
	}
	_, err := w.sum()
	return err
}

// DenseGradients returns the message with dense gradients of another worker for message number n of c.
func DenseGradients(id PassID, n uint64, all ...*tensor.Tensor) Gradients {
	m := Gradients{Pass: id, Message: n}
	for _, t := range all {
		m.Grads = append(m.Grads, Gradient{Dense: t})
	}
	return m
}

// PassIDOf names a pass in c.
func PassIDOf(c *Context, origin agent.Incarnation, number uint64) PassID {
	return PassID{Context: c.id, Creator: c.creator, Origin: origin, Number: number}
}

// SendNumbers returns the numbers of the send nodes of c, in their order.
func SendNumbers(c *Context) []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]uint64(nil), c.order...)
}

// Tables returns the sizes of the tables that must be empty when no Context is left.
func (g *Autograd) Tables() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return map[string]int{"contexts": len(g.contexts), "usages": len(g.usages), "cleanups": len(g.cleanups)}
}
