package staging

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
)

var errEnough = errors.New("enough")

// newKind returns a kind with one device, and host memory of 100 bytes on a held stream of it.
func newKind(t *testing.T) (k *delayed.Kind, memory []byte, held device.Buffer, release func()) {
	k = delayed.New("npu", 1)
	t.Cleanup(k.Close)
	s, err := k.NewStream(k.Devices()[0])
	require.NoError(t, err)
	memory = make([]byte, 100)
	return k, memory, device.Bytes(memory).WithStream(s), s.(*delayed.Stream).Hold()
}

// noWait fails the test if Begin has to wait.
func noWait(t *testing.T) func(device.Event) error {
	return func(device.Event) error {
		require.Fail(t, "it waits")
		return nil
	}
}

func TestNeeded(t *testing.T) {
	k, _, held, _ := newKind(t)
	on, err := k.Alloc(k.Devices()[0], 10, nil)
	require.NoError(t, err)
	plain := device.Bytes(make([]byte, 10))
	require.False(t, Needed([]device.Buffer{on, plain, {}}))
	require.True(t, Needed([]device.Buffer{on, plain, held}))
	require.Zero(t, testing.AllocsPerRun(10, func() { Needed([]device.Buffer{on, plain}) }))
}

// Only host memory whose stream has work is staged, and it gets its bytes after that work.
func TestStagesWhatIsNotValid(t *testing.T) {
	k, memory, held, release := newKind(t)
	on, err := k.Alloc(k.Devices()[0], 10, nil)
	require.NoError(t, err)
	s, err := k.NewStream(k.Devices()[0])
	require.NoError(t, err)
	plain, idle := make([]byte, 10), make([]byte, 10)
	b := New(1 << 20)
	r, err := b.Begin([]device.Buffer{on, device.Bytes(plain), device.Bytes(idle).WithStream(s), held}, []device.Kind{k}, noWait(t))
	require.NoError(t, err)
	require.Equal(t, on, r.Memory[0])
	for i, m := range r.Memory[1:] {
		require.Nil(t, m.Stream(), i)
		p, _ := m.Contiguous()
		copy(p, "received")
	}
	require.Equal(t, "received", string(plain[:8]))
	require.NoError(t, r.End(true))
	require.NoError(t, s.Synchronize(t.Context()))
	require.Equal(t, "received", string(idle[:8]))
	require.Zero(t, memory[0])
	release()
	require.NoError(t, held.Stream().Synchronize(t.Context()))
	require.Equal(t, "received", string(memory[:8]))
}

// The bytes of a Receive are free once its copies are done, or End drops them.
func TestBudget(t *testing.T) {
	k, _, held, release := newKind(t)
	b, kinds := New(3*(100+overhead)), []device.Kind{k}
	refused := func(device.Event) error { return errEnough }
	for range 10 {
		r, err := b.Begin([]device.Buffer{held, held, held}, kinds, noWait(t))
		require.NoError(t, err)
		require.NoError(t, r.End(false))
		_, err = b.Begin([]device.Buffer{held, held, held, held}, kinds, refused)
		require.ErrorIs(t, err, errEnough)
	}
	for range 3 {
		r, err := b.Begin([]device.Buffer{held}, kinds, noWait(t))
		require.NoError(t, err)
		require.NoError(t, r.End(true))
	}
	_, err := b.Begin([]device.Buffer{held}, kinds, refused)
	require.ErrorIs(t, err, errEnough)
	release()
	require.NoError(t, held.Stream().Synchronize(t.Context()))
	release = held.Stream().(*delayed.Stream).Hold()
	defer release()
	r, err := b.Begin([]device.Buffer{held, held, held}, kinds, noWait(t))
	require.NoError(t, err)
	require.NoError(t, r.End(true))
}

// The events of copies that are done are not kept.
func TestForgetsCompletedCopies(t *testing.T) {
	k, _, held, release := newKind(t)
	release()
	b := New(1 << 30)
	for range 1000 {
		release = held.Stream().(*delayed.Stream).Hold()
		r, err := b.Begin([]device.Buffer{held}, []device.Kind{k}, noWait(t))
		require.NoError(t, err)
		require.NoError(t, r.End(true))
		release()
		require.NoError(t, held.Stream().Synchronize(t.Context()))
	}
	require.LessOrEqual(t, len(b.copies), 32)
}

// Without the kind of a stream Begin waits, and then uses the memory itself.
func TestWaitsWithoutTheKind(t *testing.T) {
	_, memory, held, release := newKind(t)
	r, err := New(1<<20).Begin([]device.Buffer{held}, []device.Kind{device.NewCPU()}, func(ready device.Event) error {
		release()
		return ready.Synchronize(t.Context())
	})
	require.NoError(t, err)
	p, _ := r.Memory[0].Contiguous()
	copy(p, "received")
	require.Equal(t, "received", string(memory[:8]))
	require.NoError(t, r.End(true))
}

// A copy that the kind rejects is the error of End, and frees its bytes and those after it.
func TestRejectedCopy(t *testing.T) {
	k, _, held, _ := newKind(t)
	b := New(1 << 20)
	r, err := b.Begin([]device.Buffer{held, held}, []device.Kind{k}, noWait(t))
	require.NoError(t, err)
	k.Close()
	require.ErrorIs(t, r.End(true), delayed.ErrClosed)
	require.Zero(t, b.used)
	_, err = b.Begin([]device.Buffer{held}, []device.Kind{k}, noWait(t))
	require.ErrorIs(t, err, delayed.ErrClosed)
}
