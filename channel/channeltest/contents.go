package channeltest

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Fresh memory is what takes longest under the race detector, which clears the
// shadow of every byte of it. Contents are therefore cut from two pieces of
// memory that all tests share and none writes to, and what is read is compared
// in memory that was used before.

// scribbled is a byte that never occurs in what random returns.
const scribbled = 0xee

// period is a prime, so that pieces in the wrong place show.
const period = 4099

var (
	pattern   = contents{period: patternPeriod()}
	scribbles = contents{period: []byte{scribbled}}
)

// contents are as many bytes as are asked for, by repetition.
type contents struct {
	period []byte

	mu   sync.Mutex
	have []byte
}

// bytes returns n bytes, not to be written to.
func (c *contents) bytes(n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.have) < n {
		c.have = bytes.Repeat(c.period, max(n, 2*len(c.have))/len(c.period)+1)
	}
	return c.have[:n:n]
}

func patternPeriod() []byte {
	p := make([]byte, period)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range p {
		p[i] = byte(r.UintN(scribbled))
	}
	return p
}

// random returns n bytes that depend on seed. Nobody may write to them.
func random(n int, seed uint64) []byte {
	const step = 1009 // neighbours begin far from each other
	shift := int(seed % period * step % period)
	return pattern.bytes(shift + n)[shift:]
}

// used is memory for what is read to be compared.
var used sync.Pool

// borrow returns n bytes, all zero, for giveBack.
func borrow(n int) *[]byte {
	if p, ok := used.Get().(*[]byte); ok && cap(*p) >= n {
		*p = (*p)[:n]
		clear(*p)
		return p
	}
	p := make([]byte, n)
	return &p
}

func giveBack(p *[]byte) { used.Put(p) }

// wantBytes compares without printing megabytes.
func wantBytes(t *testing.T, want, got []byte, what string) {
	t.Helper()
	require.Equal(t, len(want), len(got), what)
	if bytes.Equal(want, got) {
		return
	}
	i := 0
	for want[i] == got[i] {
		i++
	}
	require.Failf(t, "wrong bytes", "%s: at %d of %d: want %#x, got %#x", what, i, len(want), want[i], got[i])
}
