package pipe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// pathEnd is one end of a pipe on a path. It counts the messages and tensors that it
// writes, to compare them with the pipe's own counters.
type pathEnd struct {
	*pipe.Pipe
	peer     *pathEnd
	path     path
	messages pipe.Traffic // written: payload and tensor bytes
	tensors  pipe.Traffic // written, without empty ones
	open     uint64       // of tensors, those for which the peer has not chosen a device yet
}

// onPathEnds runs f as a subtest on each path of the dialect, with the two ends of a new pipe. It
// requires that both ends use that path, and, after f, that the path's channel has carried exactly
// the tensors that f wrote.
func onPathEnds(t *testing.T, dialect pipe.Dialect, f func(t *testing.T, client, server *pathEnd)) {
	for _, path := range pathsOf(dialect) {
		t.Run(path.name, func(t *testing.T) {
			a, b := connect(t, path)
			client, server := &pathEnd{Pipe: a, path: path}, &pathEnd{Pipe: b, path: path}
			client.peer, server.peer = server, client
			client.requirePlan(t)
			server.requirePlan(t)
			f(t, client, server)
			client.requireCarried(t)
			server.requireCarried(t)
		})
	}
}

// channel returns the name of the path's only channel.
func (p path) channel() string { return p.opts().Channels[0].Name }

// requirePlan requires that the pipe's plan has the dialect, the transport and the only channel of
// e.path, and the inline limit by which tests choose the sizes of tensors.
func (e *pathEnd) requirePlan(t *testing.T) {
	t.Helper()
	plan := e.Plan()
	require.Equal(t, e.path.dialect, plan.Dialect)
	require.Equal(t, e.path.opts().Transports[0].Name, plan.Transport)
	require.Equal(t, []pipe.PlannedChannel{{Local: device.CPU(), Remote: device.CPU(), Channel: e.path.channel()}}, plan.Channels)
	require.Equal(t, e.path.inline, plan.Inline)
}

// requireCarried requires that the pipe's counters are those of the messages that both ends have
// written, and that the path's channel has carried each tensor that is not empty.
func (e *pathEnd) requireCarried(t *testing.T) {
	t.Helper()
	s := e.Stats()
	require.Equal(t, e.messages, s.Sent)
	require.Equal(t, e.peer.messages, s.Received)
	require.Equal(t, []pipe.ChannelStats{{Name: e.path.channel(), Sent: e.tensors, Received: e.peer.tensors}}, s.Channels)
}

// large makes sizes of tensors too large to be inline, also in a message that answers another one: it
// adds the limit of a message to each n that is not 0, in place, and returns n.
func (e *pathEnd) large(n ...int) []int {
	for i := range n {
		if n[i] > 0 {
			n[i] += e.Plan().InlineMessage
		}
	}
	return n
}

// pathWrite is a message that a pathEnd has written.
type pathWrite struct {
	*pipe.WriteOp
	from    *pathEnd
	message *pipe.Message
	open    uint64 // tensors for which the peer has to choose a device
}

// write starts to write m, counts its messages and bytes for requireCarried, and returns the write
// without waiting for it. It requires that each tensor is empty or too large to be inline.
func (e *pathEnd) write(t *testing.T, m *pipe.Message) *pathWrite {
	t.Helper()
	w := &pathWrite{from: e, message: m}
	e.messages.Messages++
	for _, p := range m.Payloads {
		e.messages.Bytes += uint64(len(p.Data))
	}
	for _, tensor := range m.Tensors {
		n := tensor.Buffer.Len()
		if n == 0 {
			continue
		}
		require.Greater(t, n, e.Plan().InlineMessage, "the tensor may be inline")
		e.messages.Bytes += uint64(n)
		e.tensors.Messages++
		e.tensors.Bytes += uint64(n)
		if tensor.TargetDevice.IsZero() {
			w.open++
		}
	}
	e.open += w.open
	w.WriteOp = e.WriteAsync(testContext(t), m)
	return w
}

// next waits for the message of w and returns it. It also requires that the sender has not sent any
// tensor for which this end still has to choose a device: the counter of the sender's channel must
// not include such tensors.
func (e *pathEnd) next(t *testing.T, w *pathWrite) *pipe.Incoming {
	t.Helper()
	in, err := e.Next(testContext(t))
	require.NoError(t, err)
	require.LessOrEqual(t, w.from.Stats().Channels[0].Sent.Messages, w.from.tensors.Messages-w.from.open)
	if w.open > 0 {
		w.requirePending(t)
	}
	return in
}

func (w *pathWrite) requirePending(t *testing.T) {
	t.Helper()
	select {
	case <-w.Done():
		require.Fail(t, "a write ended before the peer chose the devices", "%v", w.Err())
	default:
	}
}

// pathRead is a message that is being read.
type pathRead struct {
	in   *pipe.Incoming
	a    pipe.Allocation
	done chan error
}

// read starts to read in, the message of the write w, into new host memory, and returns the read
// without waiting for it.
func (e *pathEnd) read(t *testing.T, in *pipe.Incoming, w *pathWrite) *pathRead {
	t.Helper()
	w.from.open -= w.open
	r := &pathRead{in, pipe.NewAllocation(in.Descriptor()), make(chan error, 1)}
	ctx := testContext(t)
	go func() { r.done <- in.Read(ctx, r.a) }()
	return r
}

// expect waits until the read has ended, and requires that it has succeeded and that the message
// equals m.
func (r *pathRead) expect(t *testing.T, m *pipe.Message) {
	t.Helper()
	require.NoError(t, <-r.done)
	same(t, m, r.in.Descriptor(), r.a)
}

// message returns the received message as one that can be sent back. It shares the memory that was
// read.
func (r *pathRead) message() *pipe.Message { return r.in.Descriptor().Message(r.a) }

func requireWritten(t *testing.T, writes ...*pathWrite) {
	t.Helper()
	for _, w := range writes {
		require.NoError(t, w.Wait(testContext(t)))
	}
}
