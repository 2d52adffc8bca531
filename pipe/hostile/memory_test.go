package hostile_test

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// The documented memory that a peer can make a context take. It is per
// connection or pipe; limits on their numbers give the sum.
const (
	// ahead is how far memory for a frame runs ahead of its bytes.
	ahead = 64 << 10

	// overhead is for the connection itself at both ends, which here are in
	// one process: buffers, goroutines, errors.
	overhead = 128 << 10
)

// allocated is the number of bytes that f makes this process allocate, garbage
// included: an upper bound of what it held at any time. Nothing else may run.
func allocated(t testing.TB, f func()) uint64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	n := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d KiB allocated, heap of %d KiB in use", n>>10, after.HeapInuse>>10)
	return n
}

// held is what is in use on the heap once the garbage has gone.
func held() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Many clients announce the longest handshake messages and send a byte each.
func TestMemoryOfHandshakeClaims(t *testing.T) { memoryOfHandshakeClaims(t, overTCP) }

func memoryOfHandshakeClaims(t *testing.T, over carrier) {
	clients := over.many(200)
	for name, before := range map[string][]byte{"packets": nil, "brochures": appendFrame(nil, hello())} {
		t.Run(name, func(t *testing.T) {
			v := over.newVictim(t)
			var crowd []*raw
			for range clients {
				r := v.visit(t)
				r.send(before)
				crowd = append(crowd, r)
			}
			await(t, func() bool { return v.Stats().HandshakesInProgress == clients }, "all are admitted")
			n := allocated(t, func() {
				for _, r := range crowd {
					r.header(handshakeLimit)
					r.send([]byte{0xb9})
					require.NoError(t, r.CloseWrite())
				}
				await(t, func() bool { return v.Stats().HandshakesFailed == uint64(clients) }, "all claims have been read")
			})
			require.Less(t, n, uint64(clients*(ahead+overhead)))
			v.quiet(t)
		})
	}
}

// The same with brochures that really come, full of the smallest entries.
func TestMemoryOfBrochures(t *testing.T) {
	const clients = 8
	crowd := goodBrochure()
	for i := range 4000 {
		crowd.TransportDomainDescriptors[string(rune('A'+i%26))+string(rune(1000+i))] = ""
	}
	brochure := crowd.Append(nil)
	require.Less(t, len(brochure), handshakeLimit)
	v := newVictim(t)
	n := allocated(t, func() {
		for range clients {
			first := v.visitWith(t, hello(), brochure)
			first.read()
		}
	})
	require.Less(t, n, uint64(clients*(40*len(brochure)+overhead)))
}

// Peers with open pipes announce what they do not send.
func TestMemoryOfPipeClaims(t *testing.T) {
	byTurns(t, overTCP, roles, memoryOfPipeClaims)
}

func memoryOfPipeClaims(t *testing.T, v *victim, open func(testing.TB) *attack) {
	pipes := v.over.many(20)
	claims := map[string]func(a *attack){
		"descriptors": func(a *attack) { a.desc.header(descriptorLimit); a.desc.send([]byte{0xb9}) },
		"replies":     func(a *attack) { a.reply.header(descriptorLimit); a.reply.send([]byte{0xb9}) },
		"payloads":    func(a *attack) { a.desc.frame(payloadDescriptor(payloadLimit)); a.desc.header(payloadLimit) },
		"tensors":     func(a *attack) { a.desc.frame(tensorDescriptor(tensorLimit)); a.basic.header(tensorLimit) },
		"many payloads": func(a *attack) {
			a.desc.frame(payloadDescriptor(make([]uint64, 1000)...))
			a.desc.header(0)
		},
	}
	for name, claim := range claims {
		t.Run(name, func(t *testing.T) {
			var attacks []*attack
			for range pipes {
				attacks = append(attacks, open(t))
			}
			n := allocated(t, func() {
				for _, a := range attacks {
					claim(a)
					a.hangUp()
				}
				for _, a := range attacks {
					_, _ = a.pipe.Next(t.Context()) // a description, or the end
				}
			})
			require.Less(t, n, uint64(pipes*(2*ahead+overhead)))
			for _, a := range attacks {
				a.pipe.Abort(pipe.ErrClosed)
			}
			v.unharmed(t)
		})
	}
}

// A peer floods messages that the application does not ask for.
func TestMemoryOfFlood(t *testing.T) { memoryOfFlood(t, newVictim(t)) }

func memoryOfFlood(t *testing.T, v *victim) {
	const pipes, readAhead = 4, 256 << 10
	floods := map[string][]byte{
		"empty messages":   appendFrame(nil, payloadDescriptor()),
		"metadata":         appendFrame(nil, metadataDescriptor(10_000)),
		"small payloads":   appendFrame(appendFrame(nil, payloadDescriptor(10_000)), make([]byte, 10_000)),
		"large payloads":   appendFrame(appendFrame(nil, payloadDescriptor(1<<20)), make([]byte, 1<<20)),
		"unasked tensors":  appendFrame(nil, tensorDescriptor(8)),
		"a crowd of parts": appendFrame(nil, tensorDescriptor(make([]uint64, 500)...)),
	}
	for name, message := range floods {
		t.Run(name, func(t *testing.T) {
			var attacks []*attack
			for i := range pipes {
				attacks = append(attacks, []func(testing.TB, *victim) *attack{dialVictim, lureVictim}[i%2](t, v))
			}
			before := held()
			var sent atomic.Int64
			var floods sync.WaitGroup
			for _, a := range attacks {
				floods.Go(func() { sent.Add(a.desc.flood(t, message)) })
			}
			floods.Wait()
			grown := held() - min(before, held())
			t.Logf("%d KiB sent, %d KiB held, resident set of %d KiB", sent.Load()>>10, grown>>10, resident(t)>>10)
			require.Less(t, grown, uint64(pipes*(4*readAhead+overhead)))
			for _, a := range attacks {
				require.LessOrEqual(t, a.pipe.Stats().BytesReadAhead, readAhead+2*len(message))
				a.pipe.Abort(pipe.ErrClosed)
			}
			v.unharmed(t)
		})
	}
	v.quiet(t)
	v.alive(t)
}

// flood repeats a message until the victim has taken no byte for a while, and
// returns the number of bytes sent.
func (r *raw) flood(t testing.TB, message []byte) (sent int64) {
	message = bytes.Repeat(message, 1+(64<<10)/len(message))
	for {
		err := r.SetWriteDeadline(time.Now().Add(shortly))
		n, werr := r.Write(message)
		sent += int64(n)
		if err = errors.Join(err, werr); err != nil {
			assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return sent
		}
	}
}

func metadataDescriptor(n int) []byte {
	d := wire.Descriptor{Metadata: make([]byte, n)}
	return d.Append(nil)
}

// Throwing away what a peer announces must not take what it announces, be it
// for the application or because the pipe is closing.
func TestMemoryOfDiscarding(t *testing.T) {
	claims := map[string][]byte{
		"a tensor of the largest size": tensorDescriptor(tensorLimit),
		"thousands of tensors":         tensorDescriptor(repeat(64<<10, 8192)...),
		"a payload":                    payloadDescriptor(payloadLimit),
		"thousands of payloads":        payloadDescriptor(repeat(64<<10, 8192)...),
	}
	byTurns(t, overTCP, roles, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for name, claim := range claims {
			t.Run(name+", discarded", func(t *testing.T) {
				a := open(t)
				a.desc.frame(claim)
				in, err := a.pipe.Next(t.Context())
				require.NoError(t, err)
				n := allocated(t, func() {
					discarded := make(chan error, 1)
					go func() { discarded <- in.Discard(t.Context()) }()
					a.reply.frame([]byte("garbage")) // ends it
					requireError(t, <-discarded, "reply", pipe.ErrProtocol)
				})
				require.Less(t, n, uint64(16<<20))
			})
			t.Run(name+", closing", func(t *testing.T) {
				a := open(t)
				a.desc.frame(claim)
				await(t, func() bool { return a.pipe.Stats().BytesReadAhead > 0 }, "the claim has been read")
				n := allocated(t, func() {
					requireError(t, a.pipe.Close(), "", pipe.ErrCloseTimeout)
				})
				require.Less(t, n, uint64(16<<20))
			})
			v.unharmed(t)
		}
	}, impatient)
}

func repeat(n uint64, times int) []uint64 {
	out := make([]uint64, times)
	for i := range out {
		out[i] = n
	}
	return out
}
