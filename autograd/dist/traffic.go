package dist

import "sync/atomic"

// Traffic is the gradients that a worker has received from others, and from itself, in messages of
// passes. Bytes are those of their elements.
type Traffic struct{ Messages, Bytes int64 }

// traffic counts the messages for Traffic.
type traffic struct{ messages, bytes atomic.Int64 }

// add counts a message with gradients. One without any is not counted.
func (t *traffic) add(grads []gradient) {
	if len(grads) == 0 {
		return
	}
	bytes := 0
	for _, g := range grads {
		switch {
		case g.Dense != nil:
			bytes += g.Dense.ByteSize()
		case g.Sparse != nil:
			bytes += g.Sparse.Values().ByteSize() + g.Sparse.Indices().ByteSize()
		}
	}
	t.messages.Add(1)
	t.bytes.Add(int64(bytes))
}

// Traffic returns the gradients that this worker has received since it joined.
func (g *Autograd) Traffic() Traffic {
	return Traffic{g.gradientTraffic.messages.Load(), g.gradientTraffic.bytes.Load()}
}
