package cudagroup

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// WhileHeld calls f while the processes of the group hold back the work of all their streams, and requires that no call
// of the driver in this process waits for a device before f has returned in all of them, each of which calls WhileHeld.
// Then the work is released. After [testwait.Limit] it is released too, so that a call which waits fails the case and
// does not block it.
func (w *Worker) WhileHeld(f func()) {
	w.Barrier() // no process needs work of another one any more
	blocking := w.control.Blocking()
	w.control.HoldAll()
	defer w.control.ReleaseAll()
	defer time.AfterFunc(testwait.Limit, w.control.ReleaseAll).Stop()
	w.Barrier()
	f()
	w.Barrier()
	require.Equal(w, blocking, w.control.Blocking(), "calls of the driver that wait for a device")
}

// RequireQueued requires that the stream on which x is valid has work left.
func (w *Worker) RequireQueued(x *tensor.Tensor) {
	b, err := x.Buffer()
	require.NoError(w, err)
	n, err := w.control.Queued(uintptr(b.Stream().(*cudaipc.Stream).Handle()))
	require.NoError(w, err)
	require.Positive(w, n, "work of the stream")
}
