package cma

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
)

// claim returns the encoding of an offer with the process id, address and nonce given.
func claim(pid uint32, address uint64, nonce []byte) []byte {
	out := binary.LittleEndian.AppendUint32(nil, pid)
	out = binary.LittleEndian.AppendUint64(out, address)
	return append(out, nonce...)
}

// altered returns a copy of offer with another process id and address, and with "unmarked" as the
// first half of the nonce.
func altered(offer []byte, pid uint32, address uint64) []byte {
	return claim(pid, address, append([]byte("unmarked"), offer[nonceAt+nonceHalf:]...))
}

// The offers of two ends in one process pass the probe of the other end, with one factory each or a
// shared one, and two offers have different nonces.
func TestProbe(t *testing.T) {
	one, other := New(Options{}), New(Options{})
	for _, listens := range []*Factory{one, other} {
		first := one.Offer(nil)
		require.LessOrEqual(t, len(first), channel.MaxOffer)
		require.NotEqual(t, first[nonceAt:], one.Offer(nil)[nonceAt:])
		require.NoError(t, listens.Probe(bytes.Clone(first), nil))
		answer := listens.Offer(first)
		require.NoError(t, one.Probe(bytes.Clone(answer), first))
		runtime.KeepAlive(answer)
	}
}

func TestProbeFails(t *testing.T) {
	f := New(Options{})
	offer := f.Offer(nil)
	pid, address := uint32(os.Getpid()), binary.LittleEndian.Uint64(offer[4:])
	var fault *ReadError
	require.ErrorAs(t, f.Probe(claim(pid, 8, offer[nonceAt:]), nil), &fault)
	require.ErrorIs(t, fault, syscall.EFAULT)
	require.ErrorAs(t, f.Probe(altered(offer, math.MaxInt32, address), nil), &fault)
	require.ErrorIs(t, fault, syscall.ESRCH)
	other := f.Offer(nil)
	moved := claim(pid, binary.LittleEndian.Uint64(other[4:]), offer[nonceAt:])
	require.ErrorContains(t, f.Probe(moved, nil), "does not contain the peer's nonce")
	runtime.KeepAlive(other)
	for _, bad := range [][]byte{nil, {1}, offer[:len(offer)-1], append(offer, 0), altered(offer, 0, address), altered(offer, 1<<31, address)} {
		require.ErrorIs(t, f.Probe(bad, nil), channel.ErrProtocol)
	}
}

// Probe rejects offers with which a peer could make this process read itself or a third process:
// copied offers, offers that do not respond to the one shown, and nonces at known bytes.
func TestProbeRejectsForgedOffers(t *testing.T) {
	f := New(Options{})
	pid := uint32(os.Getpid())
	shown, allow := f.Offer(nil), f.Offer(nil)
	known := []byte("what is known to lie here")[:nonceSize]
	for name, offer := range map[string][]byte{
		"an echo":                      shown,
		"an echo of what others see":   allow,
		"an answer to somebody else":   f.Offer(allow),
		"known bytes of this process":  claim(pid, segmentOf(known).address, known),
		"own bytes in another process": claim(1, 8, shown[nonceAt:]),
		"known bytes of another":       claim(1, 8, known),
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, f.Probe(bytes.Clone(offer), shown), "is not the peer")
		})
	}
	runtime.KeepAlive(allow)
}
