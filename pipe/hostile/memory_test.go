package hostile_test

import (
	"bytes"
	"errors"
	"fmt"
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

// The documented memory that a peer can make a context allocate, for each connection or pipe.
// Their numbers are limited too.
const (
	// frameReadAhead is how much memory is allocated for a frame before its bytes arrive.
	frameReadAhead = 64 << 10

	// overhead is the memory of the connection itself at both ends, which are both in
	// this process: buffers, goroutines, errors.
	overhead = 128 << 10
)

// allocated calls f and returns how many bytes this process has allocated during the call, garbage
// included. That is an upper bound of what f held at any time. No unrelated goroutine may allocate.
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

// heapInUse runs the garbage collector and returns the bytes of the Go heap in use after that.
func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemoryOfHandshakeClaims checks how much memory the victim allocates for many clients that
// each send the header of the longest handshake message and only one byte of its body.
func TestMemoryOfHandshakeClaims(t *testing.T) { memoryOfHandshakeClaims(t, overTCP) }

func memoryOfHandshakeClaims(t *testing.T, over network) {
	clients := over.scaled(200)
	for name, before := range map[string][]byte{"packets": nil, "brochures": appendFrame(nil, hello())} {
		t.Run(name, func(t *testing.T) {
			v := over.newVictim(t)
			var conns []*raw
			for range clients {
				r := v.dialRaw(t)
				r.send(before)
				conns = append(conns, r)
			}
			waitFor(t, func() bool { return v.Stats().HandshakesInProgress == clients }, "all handshakes are in progress")
			n := allocated(t, func() {
				for _, r := range conns {
					r.header(handshakeLimit)
					r.send([]byte{0xb9})
					require.NoError(t, r.CloseWrite())
				}
				waitFor(t, func() bool { return v.Stats().HandshakesFailed == uint64(clients) }, "all claims have been read")
			})
			require.Less(t, n, uint64(clients*(frameReadAhead+overhead)))
			v.requireIdle(t)
		})
	}
}

// TestMemoryOfBrochures checks how much memory the victim allocates for many clients that each send
// a whole offer full of the smallest entries.
func TestMemoryOfBrochures(t *testing.T) {
	const clients = 8
	offer := goodBrochure()
	for i := range 4000 {
		offer.TransportDomainDescriptors[string(rune('A'+i%26))+string(rune(1000+i))] = ""
	}
	brochure := offer.Append(nil)
	require.Less(t, len(brochure), handshakeLimit)
	v := newVictim(t)
	n := allocated(t, func() {
		for range clients {
			first := v.dialRawWith(t, hello(), brochure)
			first.read()
		}
	})
	require.Less(t, n, uint64(clients*(40*len(brochure)+overhead)))
}

// TestMemoryOfPipeClaims checks how much memory the victim allocates for peers with open pipes that
// announce bytes and do not send them.
func TestMemoryOfPipeClaims(t *testing.T) {
	inRolesSerially(t, overTCP, roles, memoryOfPipeClaims)
}

func memoryOfPipeClaims(t *testing.T, v *victim, open func(testing.TB) *attack) {
	pipes := v.over.scaled(20)
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
					a.closeConns()
				}
				for _, a := range attacks {
					_, _ = a.pipe.Next(t.Context()) // a descriptor, or the end
				}
			})
			require.Less(t, n, uint64(pipes*(2*frameReadAhead+overhead)))
			for _, a := range attacks {
				a.pipe.Abort(pipe.ErrClosed)
			}
			v.requireHealthy(t)
		})
	}
}

// TestMemoryOfFlood checks how much memory the victim holds when a peer sends many messages that
// the application does not read.
func TestMemoryOfFlood(t *testing.T) { memoryOfFlood(t, newVictim(t)) }

func memoryOfFlood(t *testing.T, v *victim) {
	const pipes, readAhead = 4, 256 << 10
	floods := map[string][]byte{
		"empty messages": appendFrame(nil, payloadDescriptor()),
		"metadata":       appendFrame(nil, metadataDescriptor(10_000)),
		"small payloads": appendFrame(appendFrame(nil, payloadDescriptor(10_000)), make([]byte, 10_000)),
		"large payloads": appendFrame(appendFrame(nil, payloadDescriptor(1<<20)), make([]byte, 1<<20)),
		"unread tensors": appendFrame(nil, tensorDescriptor(8)),
		"many parts":     appendFrame(nil, tensorDescriptor(make([]uint64, 500)...)),
	}
	for name, message := range floods {
		t.Run(name, func(t *testing.T) {
			var attacks []*attack
			for i := range pipes {
				attacks = append(attacks, []func(testing.TB, *victim) *attack{dialVictim, acceptVictim}[i%2](t, v))
			}
			before := heapInUse()
			var sent atomic.Int64
			var floods sync.WaitGroup
			for _, a := range attacks {
				floods.Go(func() { sent.Add(a.desc.flood(t, message)) })
			}
			floods.Wait()
			grown := heapInUse() - min(before, heapInUse())
			t.Logf("%d KiB sent, %d KiB held, resident set of %d KiB", sent.Load()>>10, grown>>10, residentBytes(t)>>10)
			require.Less(t, grown, uint64(pipes*(4*readAhead+overhead)))
			for _, a := range attacks {
				require.LessOrEqual(t, a.pipe.Stats().BytesReadAhead, readAhead+2*len(message))
				a.pipe.Abort(pipe.ErrClosed)
			}
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// flood sends message again and again until the victim has read nothing for shortTimeout, and
// returns the number of bytes sent.
func (r *raw) flood(t testing.TB, message []byte) (sent int64) {
	message = bytes.Repeat(message, 1+(64<<10)/len(message))
	for {
		err := r.SetWriteDeadline(time.Now().Add(shortTimeout))
		n, werr := r.Write(message)
		sent += int64(n)
		if err = errors.Join(err, werr); err != nil {
			assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return sent
		}
	}
}

// residentBytes returns the number of bytes of this process that are in main memory, the resident
// set. It returns 0 on systems other than Linux.
func residentBytes(t testing.TB) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	var size, pages int
	_, err = fmt.Sscan(string(text), &size, &pages)
	require.NoError(t, err)
	return pages * os.Getpagesize()
}

func metadataDescriptor(n int) []byte {
	d := wire.Descriptor{Metadata: make([]byte, n)}
	return d.Append(nil)
}

// TestMemoryOfDiscarding checks that the victim does not allocate memory for all announced bytes in
// order to discard them, whether the application calls Discard or Close.
func TestMemoryOfDiscarding(t *testing.T) {
	claims := map[string][]byte{
		"a tensor of the largest size": tensorDescriptor(tensorLimit),
		"thousands of tensors":         tensorDescriptor(repeat(64<<10, 8192)...),
		"a payload":                    payloadDescriptor(payloadLimit),
		"thousands of payloads":        payloadDescriptor(repeat(64<<10, 8192)...),
	}
	inRolesSerially(t, overTCP, roles, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
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
				waitFor(t, func() bool { return a.pipe.Stats().BytesReadAhead > 0 }, "the claim has been read")
				n := allocated(t, func() {
					requireError(t, a.pipe.Close(), "", pipe.ErrCloseTimeout)
				})
				require.Less(t, n, uint64(16<<20))
			})
			v.requireHealthy(t)
		}
	}, shortCloseTimeout)
}

func repeat(n uint64, times int) []uint64 {
	out := make([]uint64, times)
	for i := range out {
		out[i] = n
	}
	return out
}
