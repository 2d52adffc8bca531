package pipe

import (
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// Parts of a message travel inside it as long as each has at most inlinePart
// bytes and all together inlineMessage; the others wait for memory. Through shared
// memory all parts of a message do that has at most inlineRing bytes: what is
// written goes straight on into the memory of Read, and asking would take longer.
const (
	inlinePart    = 64 << 10
	inlineMessage = 1 << 20
	inlineRing    = native.MostInline
)

// inliner decides which parts travel inside a message, one after the other:
// first the payloads, then the tensors. An empty part always does.
type inliner struct {
	most int // bytes of a part
	used int
}

func (i *inliner) take(n int) bool {
	if n > i.most || n > max(inlineMessage, i.most)-i.used {
		return false
	}
	i.used += n
	return true
}

// takeTensor decides about a tensor of which n bytes travel: it must be in host
// memory, valid now, and free to go to host memory.
func (i *inliner) takeTensor(t *Tensor, n int) bool {
	b := &t.Buffer
	plain := b.IsHost() && b.Stream() == nil && b.Device() == device.CPU() &&
		(t.TargetDevice.IsZero() || t.TargetDevice == device.CPU())
	return n == 0 || plain && i.take(n)
}
