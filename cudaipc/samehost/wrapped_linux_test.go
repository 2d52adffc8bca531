package samehost_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Memory of the application that was sent directly must not be freed while the process of the peer lives,
// even if the pipe has ended. In the compatible dialect the peer does not map it.
func TestFreeOfMemoryOfTheApplication(t *testing.T) {
	inBothForms(t, func(t *testing.T, r route) {
		p := r.start(t, nil, func(n *node) {
			s := n.stream(gpu(0))
			if n.Rank == 1 {
				n.requireFilled(n.read(s)[0], 7)
				n.Send("received")
				require.NoError(n, n.WaitFor("end"))
				return
			}
			b := n.wrap(tensorSize, s)
			n.fill(b, 7)
			n.write(gpu(0), b)
			var want error
			if n.route.dialect == pipe.DialectNative {
				want = cudaipc.ErrMapped
			}
			require.ErrorIs(n, n.kind.CheckFree(ptr(b)), want)
			require.NoError(n, n.WaitFor("received"))
			require.NoError(n, n.Close())
			require.ErrorIs(n, n.kind.CheckFree(ptr(b)), want)
			n.Send("checked")
			free := n.atEnd
			n.atEnd = []func(){func() { require.NoError(n, n.kind.CheckFree(ptr(b))) }}
			n.atEnd = append(n.atEnd, free...)
		})
		require.Equal(t, "received", p.ReadLine(1))
		p.Send(0, "received")
		require.Equal(t, "checked", p.ReadLine(0))
		p.Send(1, "end")
		p.finish()
	})
}
