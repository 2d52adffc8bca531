package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// atAlloc is an allocator that runs a function first. An echo allocates after it has received
// the description of a message and before it reads the message.
type atAlloc struct {
	tensor.Allocator
	first func(n int)
}

func (a atAlloc) Alloc(n int) (*tensor.Storage, error) {
	a.first(n)
	return a.Allocator.Alloc(n)
}

// TestEchoLeavesOutWhatIsGivenUp checks that a sender that aborts one message gets the echoes of
// all others, and that the echo releases the memory of the aborted one.
func TestEchoLeavesOutWhatIsGivenUp(t *testing.T) {
	const large, aborted = 3 << 20, 4 << 20 // neither is inline
	giveUp, gone := make(chan struct{}), make(chan struct{})
	pool := tensor.NewPool(tensor.PoolOptions{})
	p, echo := joined(t)
	echoed := make(chan error, 1)
	go func() {
		r := echoPipe{pipe: echo, limit: int(defaultLimit), memory: newEchoMemory(1 << 30), pool: atAlloc{pool, func(n int) {
			if n == aborted {
				close(giveUp)
				<-gone
			}
		}}}
		echoed <- r.run()
	}()

	abortedCtx, cancel := context.WithCancel(t.Context())
	var ops []*pipe.WriteOp
	for i, n := range []int{large, aborted, large} {
		ctx := t.Context()
		if n == aborted {
			ctx = abortedCtx
		}
		ops = append(ops, p.WriteAsync(ctx, &pipe.Message{
			Metadata: []byte{byte(i)},
			Payloads: []pipe.Payload{{Data: make([]byte, n)}},
		}))
	}
	go func() {
		<-giveUp
		cancel()
		<-ops[1].Done()
		close(gone)
	}()
	for _, want := range []byte{0, 2} {
		in, err := p.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, []byte{want}, in.Descriptor().Metadata)
		require.NoError(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())))
	}
	require.NoError(t, ops[0].Wait(t.Context()))
	require.ErrorIs(t, ops[1].Wait(t.Context()), pipe.ErrCancelled)
	require.NoError(t, ops[2].Wait(t.Context()))
	require.NoError(t, p.Close())
	require.NoError(t, <-echoed)
	require.Zero(t, pool.Stats().InUse, "memory of the message given up")
}

// joined returns the two ends of a new pipe over TCP in the native dialect. They are closed when
// the test ends.
func joined(t *testing.T) (client, server *pipe.Pipe) {
	t.Helper()
	c, err := tensorpipe.NewContext(pipe.Options{Name: "echo"})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	l, err := c.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	client = dial(t, l.URLs()[0])
	server, err = l.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, pipe.DialectNative, client.Plan().Dialect)
	return client, server
}

// TestEchoMemoryIsShared checks that a peer that holds memory of an echo and stops is disconnected
// once another pipe has waited for memory, and that the other pipe then gets its echoes.
func TestEchoMemoryIsShared(t *testing.T) {
	const stuck, next = 6 << 20, 5 << 20
	memory := newEchoMemory(10 << 20)
	memory.wait = time.Millisecond
	holding, release := make(chan struct{}), make(chan struct{})
	serve := func(a tensor.Allocator) (p, echo *pipe.Pipe, ended <-chan error) {
		p, echo = joined(t)
		r := echoPipe{pipe: echo, limit: int(defaultLimit), pool: a, memory: memory}
		return p, echo, testwait.Start(r.run)
	}
	pool := tensor.NewPool(tensor.PoolOptions{})
	large, largeEcho, largeEnded := serve(atAlloc{pool, func(int) { close(holding); <-release }})
	small, _, smallEnded := serve(pool)
	lost := large.WriteAsync(t.Context(), &pipe.Message{Payloads: []pipe.Payload{{Data: make([]byte, stuck)}}})
	<-holding
	var sent []*pipe.WriteOp
	for range 3 {
		sent = append(sent, small.WriteAsync(t.Context(), &pipe.Message{Payloads: []pipe.Payload{{Data: make([]byte, next)}}}))
	}
	<-largeEcho.Done()
	require.ErrorIs(t, largeEcho.Err(), pipe.ErrLimit)
	close(release)
	require.ErrorIs(t, <-largeEnded, pipe.ErrLimit)
	<-lost.Done()
	require.Error(t, lost.Err())
	for _, op := range sent {
		in, err := small.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, in.Discard(t.Context()))
		require.NoError(t, op.Wait(t.Context()))
	}
	require.NoError(t, small.Close())
	require.NoError(t, <-smallEnded)
	require.Zero(t, memory.bytes.InUse())
	require.Empty(t, memory.held)
}

// TestEchoMemoryIsWaitedFor checks that pipes whose messages do not fit into the memory together
// wait for each other, and that all get their echoes.
func TestEchoMemoryIsWaitedFor(t *testing.T) {
	memory := newEchoMemory(5 << 20)
	pool := tensor.NewPool(tensor.PoolOptions{})
	var clients, echoes []<-chan error
	for range 4 {
		p, echo := joined(t)
		r := echoPipe{pipe: echo, limit: int(defaultLimit), pool: pool, memory: memory}
		echoes = append(echoes, testwait.Start(r.run))
		clients = append(clients, testwait.Start(func() error {
			for range 10 {
				op := p.WriteAsync(t.Context(), &pipe.Message{Payloads: []pipe.Payload{{Data: make([]byte, 4<<20)}}})
				in, err := p.Next(t.Context())
				if err == nil {
					err = errors.Join(in.Discard(t.Context()), op.Wait(t.Context()))
				}
				if err != nil {
					return err
				}
			}
			return p.Close()
		}))
	}
	for i := range clients {
		require.NoError(t, <-clients[i])
		require.NoError(t, <-echoes[i])
	}
	require.Zero(t, memory.bytes.InUse())
}
