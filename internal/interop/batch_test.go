package interop

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

// large is more bytes than any connection or ring buffers. It is smaller under the race
// detector, which checks every byte.
var large = race.Pick(64<<20, 16<<20)

// batch is the messages of one exchange, which both ends can generate. They are not modified, so
// that several exchanges may use a batch.
type batch struct {
	shape    Shape
	messages []Message
	reports  func() []Report // what a sink prints about them
}

func newBatch(s Shape, count int) *batch {
	b := &batch{shape: s}
	for i := range count {
		b.messages = append(b.messages, Generate(s, i))
	}
	b.reports = sync.OnceValue(func() (out []Report) {
		for _, m := range b.messages {
			out = append(out, m.Report())
		}
		return out
	})
	return b
}

// flags returns the command line flags with which tppeer sends the messages of b, or expects them.
func (b *batch) flags() []string { return b.shape.flags(len(b.messages)) }

// flags returns the command line flags with which tppeer generates the first count messages of the
// shape.
func (s Shape) flags(count int) []string {
	names := map[Targets]string{TargetsMixed: "mixed", TargetsAll: "all", TargetsNone: "none"}
	args := []string{"--count", strconv.Itoa(count), "--seed", fmt.Sprint(s.Seed), "--targets", names[s.Targets]}
	for name, n := range map[string]*int{"--payloads": s.Payloads, "--tensors": s.Tensors} {
		if n != nil {
			args = append(args, name, strconv.Itoa(*n))
		}
	}
	if len(s.Sizes) > 0 {
		args = append(args, "--size", strings.Trim(strings.Join(strings.Fields(fmt.Sprint(s.Sizes)), ","), "[]"))
	}
	return args
}
