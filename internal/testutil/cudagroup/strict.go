package cudagroup

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// LateSource is how late the tensors of a case are, in sleeps of SleepTime. In one try of a drop they are later than the
// memory into which they are received, and in the next one it is the other way round: the later of two streams hides a
// missing call of the other one. Further tries take longer, for loaded machines.
func LateSource() int { return (5 - 4*(drops.Try()%2)) * longer() }

// LateTarget is how late the memory is into which tensors are received.
func LateTarget() int { return 5 * (drops.Try() % 2) * longer() }

// longer returns the factor of this try, which is 3 times larger in every second one.
func longer() int {
	n := 1
	for range drops.Try() / 2 {
		n *= 3
	}
	return n
}

// farther is how much later the memory is into which the worker that calls models receives.
const farther = 5

// ModelsCalledBy is called first by each worker of a case in which only the worker of that rank calls functions, which run
// on the others. In a run of drops the memory for its results is later than theirs for the arguments.
func (w *Worker) ModelsCalledBy(rank int) { w.caller.Store(int32(rank)) }

// noCaller is the rank of the caller in cases without ModelsCalledBy.
const noCaller = -1

func (w *Worker) callsModels() bool { return int(w.caller.Load()) == w.Rank }

// lateTarget is that of w.
func (w *Worker) lateTarget() int {
	if w.callsModels() {
		return farther * LateTarget()
	}
	return LateTarget()
}

// sentSleeps is how long tensors that were sent are overwritten, in sleeps of SleepTime: until they were received.
func (w *Worker) sentSleeps() int {
	n := 2 * LateTarget()
	if w.caller.Load() != noCaller {
		n *= farther
	}
	return LateSource() + n
}

// overwritesSent and overwritesArguments report whether w overwrites tensors that were sent, or arguments that were
// received, in this try. One would delay the other, and both delay the work in whose place a call is missing.
func (w *Worker) overwritesSent() bool {
	switch drops.Try() {
	case 0, 4:
		return true
	case 1, 5:
		return w.callsModels()
	case 3:
		return !w.callsModels()
	}
	return false
}
func overwritesArguments() bool { return drops.Try() == 2 }

// overwriteAfterUse changes the Config of an agent in cases that see wrong bytes if a call of the driver is missing, those of
// a run of drops: memory is not ready at once when it is allocated, and tensors are overwritten for a while once
// they were sent, or received and used. Others use their memory as it is.
func (w *Worker) overwriteAfterUse(c *agent.Config) {
	if !drops.Running() {
		return
	}
	c.Kinds = []device.Kind{lateKind{w.Kind, w}}
	if c.Registry == nil {
		c.Registry = codec.NewRegistry()
	}
	c.Codec = storageCodec{c.Registry}
	i := agent.Interceptor{Encoded: w.overwriteSentAtEnd}
	if overwritesArguments() && len(c.Extensions) == 0 { // references keep arguments
		i.Decoded = w.overwriteArgumentsAtEnd
	}
	c.Interceptors = append(c.Interceptors, i)
}

// lateKind is a Kind whose new memory is still written by work of its stream, as that of an earlier user may be.
type lateKind struct {
	*cudaipc.Kind
	w *Worker
}

// Alloc implements device.Kind.
func (k lateKind) Alloc(d device.Device, size int, s device.Stream) (device.Buffer, error) {
	b, err := k.Kind.Alloc(d, size, s)
	if err != nil || size == 0 {
		return b, err
	}
	if n := k.w.lateTarget(); n > 0 {
		if err := k.w.Kind.Sleep(b.Stream(), time.Duration(n)*SleepTime); err != nil {
			return b, err
		}
	}
	k.w.overwrite(b)
	return b, nil
}

// storageCodec is the default Codec. It stores the memory of the tensors of a message under storagesKey.
type storageCodec struct{ registry *codec.Registry }

type storagesKey struct{}

// Encode implements agent.Codec.
func (c storageCodec) Encode(e *codec.Encoder, ptr any) error {
	err := e.Encode(ptr)
	if err == nil {
		e.SetState(storagesKey{}, c.storages(ptr, e.State(storagesKey{})))
	}
	return err
}

// Decode implements agent.Codec.
func (c storageCodec) Decode(d *codec.Decoder, ptr any) error {
	err := d.Decode(ptr)
	if err == nil {
		d.SetState(storagesKey{}, c.storages(ptr, d.State(storagesKey{})))
	}
	return err
}

// storages returns those of the value to which ptr points, appended to others. There are none if the value can be
// encoded in a message only.
func (c storageCodec) storages(ptr, others any) []*tensor.Storage {
	all, _ := others.([]*tensor.Storage)
	more, _ := codec.Storages(c.registry, codec.Limits{}, ptr)
	return append(all, more...)
}

// overwriteSentAtEnd has the tensors of a message that this worker sends overwritten once it has ended, and no other message that
// sends them is under way.
func (w *Worker) overwriteSentAtEnd(ctx context.Context, m *agent.Message) error {
	storages, _ := m.State(storagesKey{}).([]*tensor.Storage)
	w.sentMu.Lock()
	defer w.sentMu.Unlock()
	for _, s := range storages {
		overwrite := w.overwriter(ctx, s, w.sentSleeps())
		w.sent[s]++
		m.OnEnd(func(agent.MessageEnd) {
			w.sentMu.Lock()
			defer w.sentMu.Unlock()
			if w.sent[s]--; w.sent[s] == 0 && overwrite != nil && w.overwritesSent() {
				overwrite()
			}
		})
	}
	return nil
}

// overwriteArgumentsAtEnd does the same for arguments that this worker has received, unless it sends them again.
func (w *Worker) overwriteArgumentsAtEnd(ctx context.Context, m *agent.Message) error {
	if m.Kind != agent.KindRequest {
		return nil
	}
	storages, _ := m.State(storagesKey{}).([]*tensor.Storage)
	for _, s := range storages {
		if overwrite := w.overwriter(ctx, s, LateSource()); overwrite != nil {
			m.OnEnd(func(agent.MessageEnd) {
				w.sentMu.Lock()
				defer w.sentMu.Unlock()
				if _, found := w.sent[s]; !found {
					overwrite()
				}
			})
		}
	}
	return nil
}

// Parameter returns x, on the host, on d, valid on the current stream of ctx, and a function that is called after each use.
// In a run of drops the copy is on a stream of its own and later than tensors of messages, the more so the greater n is,
// and used overwrites its memory for a while.
func (w *Worker) Parameter(ctx context.Context, x *tensor.Tensor, d device.Device, n int) (y *tensor.Tensor, used func(), err error) {
	if !drops.Running() || d == device.CPU() {
		y, err = w.Engine.To(ctx, x, d)
		return y, func() {}, err
	}
	s := w.Stream(d)
	require.NoError(w, w.Kind.Sleep(s, time.Duration((n+1)*LateSource())*SleepTime))
	if y, err = w.Engine.To(device.WithStream(ctx, s), x, d); err != nil {
		return nil, nil, err
	}
	w.takePageLocked(x.Len()*x.DType().Size(), s)
	return y, w.overwriter(ctx, y.Storage(), (n+1)*LateSource()+LateTarget()), nil
}

// awaitIdle waits until the current stream of ctx on d has no work left.
func (w *Worker) awaitIdle(ctx context.Context, d device.Device) {
	s := device.StreamFrom(ctx, d).(*cudaipc.Stream)
	require.Eventually(w, func() bool {
		n, err := w.control.Queued(uintptr(s.Handle()))
		return n == 0 && err == nil
	}, time.Minute, time.Millisecond)
}

// TakePageLocked calls work, which copies n bytes between the host and d on the current stream of ctx. In a run of drops
// all page-locked memory of that size that is free before and after it gets other bytes.
func (w *Worker) TakePageLocked(ctx context.Context, d device.Device, n int, work func()) {
	if !drops.Running() {
		work()
		return
	}
	w.awaitIdle(ctx, d)
	w.takePageLocked(n, device.StreamFrom(ctx, d))
	work()
	w.takePageLocked(n, device.StreamFrom(ctx, d))
}

// takePageLocked gives free page-locked memory of n bytes other bytes.
func (w *Worker) takePageLocked(n int, s device.Stream) {
	for range 16 {
		w.pageLocked(n, s)
	}
}

// copyLate copies x, on the host, to d after slow work of the current stream of ctx, and uses page-locked memory that is
// free then. Earlier copies on that stream have ended, so that their memory is not the one that is found.
func (w *Worker) copyLate(ctx context.Context, x *tensor.Tensor, d device.Device) (*tensor.Tensor, error) {
	w.awaitIdle(ctx, d)
	s := device.StreamFrom(ctx, d)
	if err := w.Kind.Sleep(s, time.Duration(LateSource())*SleepTime); err != nil {
		return nil, err
	}
	y, err := w.Engine.To(ctx, x, d)
	if err == nil {
		w.takePageLocked(x.Len()*x.DType().Size(), s)
	}
	return y, err
}

// enqueueHost enqueues a copy of x, which is on a GPU, to host memory, as the stream of x sees it.
func (w *Worker) enqueueHost(x *tensor.Tensor) *tensor.Tensor {
	b, err := x.Buffer()
	require.NoError(w, err)
	host := w.pageLocked(b.Len(), b.Stream())
	require.NoError(w, w.Kind.Copy(host, b))
	y, err := tensor.FromBuffer(host.WithStream(nil), x.DType(), x.Shape()...)
	require.NoError(w, err)
	return y
}
