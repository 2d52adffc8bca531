package samehost_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// starve is the life of a child to which the system grants no more of something once
// its pipe has carried a message.
func starve(ctx context.Context, p *pipe.Pipe, of string) error {
	m, err := read(ctx, p)
	if err != nil {
		return err
	}
	if err := spoilers[of](); err != nil {
		return err
	}
	if err := p.Write(ctx, m); err != nil {
		return err
	}
	return wayRoles["reflect"](ctx, p)
}

// What the system refuses once a pipe is open costs it nothing: large tensors go both
// ways through shared memory that there is.
func TestRefusedOncePipeIsOpen(t *testing.T) {
	for _, of := range []string{"fsize", "memfd", "full"} {
		for _, c := range constellations(0) {
			t.Run(of+"/"+c.dialect+"/"+c.child(), func(t *testing.T) { outliveStarving(t, of, c.dialect, c.listens) })
		}
	}
}

func outliveStarving(t *testing.T, of, dialect string, listens bool) {
	w := wayOf("shm+basic")
	w.needs(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kid, p := w.meet(ctx, t, dialect, "starve-"+of, listens)
	w.requireWay(t, p)
	require.NoError(t, ask(ctx, p, words()[0]))
	const most = 8 << 20
	data := pseudoRandom(most)
	for _, size := range []int{1 << 20, 3<<20 + 1, most} {
		for _, target := range []device.Device{device.CPU(), {}} {
			large := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(data[:size]), TargetDevice: target}}}
			require.NoError(t, ask(ctx, p, large), "%d bytes", size)
		}
	}
	require.NoError(t, p.Close())
	require.NoError(t, kid.cmd.Wait())
}

// meet starts a child of that role and opens a pipe to it.
func (w way) meet(ctx context.Context, t *testing.T, dialect, role string, listens bool) (*child, *pipe.Pipe) {
	t.Helper()
	c, err := w.newContext("parent", dialect)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	s := survivor{way: w, dialect: dialect}
	if listens {
		kid := spawn(t, s.part("listen", role), nil)
		require.Equal(t, begun, kid.line())
		p, err := c.Dial(ctx, kid.line()[len(address):])
		require.NoError(t, err)
		return kid, p
	}
	l, url, err := w.listen(ctx, c)
	require.NoError(t, err)
	kid := spawn(t, s.part(url, role), nil)
	p, err := l.Accept(ctx)
	require.NoError(t, err)
	return kid, p
}
