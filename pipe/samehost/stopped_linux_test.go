package samehost_test

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestStopped checks that if a process is repeatedly stopped and continued while messages move in
// both directions, all bytes arrive. While it is stopped, its peer, whose buffers are full, uses no
// processor, and the peer's other pipes work.
func TestStopped(t *testing.T) {
	for _, w := range routes {
		for _, dialect := range w.dialects() {
			t.Run(w.name+"/"+string(dialect), func(t *testing.T) {
				w.skipUnlessViable(t)
				s := newSurvivor(t, w, dialect)
				s.stopRepeatedly(t, mixed)
				s.stopRepeatedly(t, small)
			})
		}
	}
}

// stopRepeatedly sends messages, the i-th of which is message(i), to a child that echoes them,
// while it repeatedly stops and continues the child. While the child is stopped, it requires that
// this process is idle and that the pipe to another process works. It requires that all echoes are
// right.
func (s *survivor) stopRepeatedly(t *testing.T, message func(i int) *pipe.Message) {
	kid := startChild(t, s.childArgs(s.url, "echo"), nil)
	p, err := s.listener.Accept(t.Context())
	require.NoError(t, err)
	s.route.requireRoute(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	x := &exchange{pipe: p, message: message, echoed: make(chan struct{}, 1)}
	written := testwait.Start(func() error { return x.write(ctx) })
	compared := testwait.Start(func() error { return x.compare(ctx) })
	for range race.Pick(3, 2) {
		for range 5 {
			testwait.Finish(t, x.echoed)
		}
		testwait.StopProcess(t, kid.cmd.Process)
		testwait.WaitIdle(t)
		require.NoError(t, sendAndCompare(ctx, s.sibling, testMessages()[0]))
		require.NoError(t, kid.cmd.Process.Signal(syscall.SIGCONT))
	}
	x.enough.Store(true)
	require.NoError(t, testwait.Finish(t, written))
	require.NoError(t, testwait.Finish(t, compared))
	require.NoError(t, p.Close())
}

// exchange sends messages to a child and compares their echoes.
type exchange struct {
	pipe    *pipe.Pipe
	message func(i int) *pipe.Message
	echoed  chan struct{} // receives a token for each echo
	enough  atomic.Bool   // stop sending
}

// write sends the messages x.message(0), x.message(1) and so on until x.enough is set, and then an
// empty message. It returns the first error.
func (x *exchange) write(ctx context.Context) error {
	for i := 0; !x.enough.Load(); i++ {
		if err := x.pipe.Write(ctx, x.message(i)); err != nil {
			return err
		}
	}
	return x.pipe.Write(ctx, &pipe.Message{})
}

func (x *exchange) compare(ctx context.Context) error {
	for i := 0; ; i++ {
		got, err := readMessage(ctx, x.pipe)
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if len(got.Metadata) == 0 {
			return nil
		}
		if !equalMessages(x.message(i), got) {
			return fmt.Errorf("message %d: %w", i, errOtherBytes)
		}
		select {
		case x.echoed <- struct{}{}:
		default:
		}
	}
}

func small(i int) *pipe.Message {
	m := mixed(4 * i)
	m.Payloads = []pipe.Payload{{Data: bytes.Repeat([]byte{byte(i)}, i%5000)}}
	return m
}

// mixed returns the i-th message of a sequence in which small and large messages alternate and each
// has other bytes. Equal i give equal messages.
func mixed(i int) *pipe.Message {
	fill := func(step, n int) device.Buffer { return device.Bytes(rising(step, i, n)) }
	m := &pipe.Message{Metadata: fmt.Append(nil, i)}
	m.Tensors = append(m.Tensors, pipe.Tensor{Buffer: fill(3, 1000+i%40), TargetDevice: device.CPU()})
	if i%4 > 0 {
		m.Tensors = append(m.Tensors, pipe.Tensor{Buffer: fill(5, i%40*150_000)})
	}
	return m
}

// rising returns n new bytes that rise by step, from first on. Nothing else has the memory, and the
// race detector makes each of many million bytes slow.
//
//go:norace
func rising(step, first, n int) []byte {
	p := make([]byte, n)
	for k := range p {
		p[k] = byte(k/4_093 + k*step + first)
	}
	return p
}
