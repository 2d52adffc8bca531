package pipe_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// toldFactory makes channels that take memory for a tensor only when they have been
// told that the tensor is given up.
type toldFactory struct {
	channel.Factory
	before func() // done first
}

func (f toldFactory) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	c, err := f.Factory.New(ctx, link, role)
	return &toldChannel{Channel: c, before: f.before, aborted: make(chan struct{})}, err
}

type toldChannel struct {
	channel.Channel
	before  func()
	once    sync.Once
	aborted chan struct{}
}

func (c *toldChannel) Recv(id uint64, b device.Buffer, done func(error)) {
	c.before()
	<-c.aborted
	c.Channel.Recv(id, b, done)
}

func (c *toldChannel) Abort(id uint64, cause error) {
	c.Channel.Abort(id, cause)
	c.once.Do(func() { close(c.aborted) })
}

// A message may be given up by its sender just when its memory goes to a channel.
func TestNativeGivenUpWhileMemoryIsGiven(t *testing.T) {
	path := nativePath()
	ctx, cancel := cancelled(t)
	a := newContext(t, path)
	b := newContext(t, path, func(o *pipe.Options) {
		o.Channels = []pipe.ChannelEntry{{Name: "basic", Factory: toldFactory{basic.New(), cancel}}}
	})
	client, server := connectContexts(t, a, b, path.url)
	op := client.WriteAsync(ctx, message(1, nil, []int{1 << 20}, device.CPU()))
	in := next(t, server)
	err := in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
	require.ErrorIs(t, err, pipe.ErrAborted)
	require.ErrorIs(t, op.Wait(testContext(t)), errEnough)
	exchange(t, server, client, message(2, []int{1}, nil))
}
