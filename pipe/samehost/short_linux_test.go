package samehost_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// runShort is the life of a child to which the system gives no more memory to share once
// its pipe has carried a message. It says what came of the pipe.
func runShort(ctx context.Context, p *pipe.Pipe) error {
	m, err := read(ctx, p)
	if err != nil {
		return err
	}
	if err := spoilers["pages"](); err != nil {
		return err
	}
	if err = p.Write(ctx, m); err == nil {
		err = reflect(ctx, p)
	}
	fmt.Println("ErrPeerLost", errors.Is(err, pipe.ErrPeerLost), "ENOMEM", errors.Is(err, syscall.ENOMEM))
	return nil
}

// An end that has no memory left to share knows that it has not lost its peer, whatever
// the system's word for it.
func TestLackOfMemoryIsNoLoss(t *testing.T) {
	w := wayOf("shm+basic")
	w.needs(t)
	for _, c := range constellations(0) {
		t.Run(c.dialect+"/"+c.child(), func(t *testing.T) {
			kid, p := w.meet(t.Context(), t, c.dialect, "short", c.listens)
			require.NoError(t, ask(t.Context(), p, words()[0]))
			large := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(pseudoRandom(8 << 20)), TargetDevice: device.CPU()}}}
			asked := patience.Start(func() error { return ask(t.Context(), p, large) })
			heard := kid.heard(t)
			for heard == begun { // where it listens that was read before
				heard = kid.heard(t)
			}
			require.Equal(t, "ErrPeerLost false ENOMEM true", heard)
			require.Error(t, patience.Finish(t, asked))
			p.Abort(nil)
		})
	}
}
