package samehost_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A peer that makes itself unreadable once the pipe is open is not lost: the reader
// hears what the system said. In the native dialect that costs the one tensor.
func TestPeerHidesWhilePipeIsOpen(t *testing.T) {
	if !withoutRights(t) {
		return
	}
	r := refusal{}
	r.spoil, r.role = "nothing", "hide"
	r.eachWay(t, func(t *testing.T, r refusal) {
		kid, p, err := r.open(t)
		require.NoError(t, err)
		require.Regexp(t, "cpu:0 to cpu:0 +"+cma.Name+"\n", kid.plan())
		small := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes([]byte("hide"))}}}
		require.NoError(t, p.Write(t.Context(), small))
		in, err := p.Next(t.Context())
		require.NoError(t, err)
		err = in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
		require.ErrorIs(t, err, pipe.ErrForbidden)
		require.NotErrorIs(t, err, pipe.ErrPeerLost)
		require.ErrorContains(t, err, "operation not permitted")
		if r.dialect == pipe.DialectNative {
			roundTrip(t, p, []byte("still there"))
			require.NoError(t, p.Close())
			return
		}
		_, err = p.Next(t.Context())
		require.Error(t, err) // this, or that the peer has closed its end in answer
	})
}
