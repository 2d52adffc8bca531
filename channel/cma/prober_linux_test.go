package cma

import (
	"encoding/binary"
	"math"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
)

// altered returns a copy of an offer with another process, address and nonce.
func altered(offer []byte, pid uint32, address uint64, flip byte) []byte {
	out := binary.LittleEndian.AppendUint32(nil, pid)
	out = binary.LittleEndian.AppendUint64(out, address)
	out = append(out, offer[12:]...)
	out[len(out)-1] ^= flip
	return out
}

func TestProbe(t *testing.T) {
	one, other := New(Options{}), New(Options{})
	offer := other.Offer()
	require.LessOrEqual(t, len(offer), channel.MaxOffer)
	require.NoError(t, one.Probe(offer))
	require.NotEqual(t, one.Offer(), offer)

	pid, address := uint32(os.Getpid()), binary.LittleEndian.Uint64(offer[4:])
	require.NoError(t, one.Probe(altered(offer, pid, address, 0)))
	require.ErrorContains(t, one.Probe(altered(offer, pid, address, 1)), "is not the peer")
	var fault *ReadError
	require.ErrorAs(t, one.Probe(altered(offer, pid, 8, 0)), &fault)
	require.ErrorIs(t, fault, syscall.EFAULT)
	require.ErrorAs(t, one.Probe(altered(offer, math.MaxInt32, address, 0)), &fault)
	require.ErrorIs(t, fault, syscall.ESRCH)
	for _, bad := range [][]byte{nil, {1}, offer[:len(offer)-1], append(offer, 0), altered(offer, 0, address, 0), altered(offer, 1<<31, address, 0)} {
		require.ErrorIs(t, one.Probe(bad), channel.ErrProtocol)
	}
}
