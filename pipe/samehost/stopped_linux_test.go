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
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A process is stopped in the midst of messages that go both ways, time after time,
// and goes on: every byte is right. While it stands still its peer, whose memory
// for what is on its way is full, sleeps. Small messages fill the rings of a
// session; large ones wait for the peer's memory as well.
func TestStopped(t *testing.T) {
	for _, w := range ways {
		for _, dialect := range w.dialects() {
			t.Run(w.name+"/"+dialect, func(t *testing.T) {
				w.needs(t)
				s := newSurvivor(t, w, dialect)
				s.stopNowAndThen(t, mixed)
				s.stopNowAndThen(t, small)
			})
		}
	}
}

// stopNowAndThen sends messages without end to a child that is stopped at some of
// them.
func (s *survivor) stopNowAndThen(t *testing.T, message func(i int) *pipe.Message) {
	kid := spawn(t, s.part(s.url, "reflect"), nil)
	p, err := s.listener.Accept(t.Context())
	require.NoError(t, err)
	s.way.requireWay(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	x := &exchange{pipe: p, message: message, came: make(chan struct{}, 1)}
	written := patience.Start(func() error { return x.write(ctx) })
	compared := patience.Start(func() error { return x.compare(ctx) })
	for range race.Pick(3, 2) {
		for range 5 {
			patience.Finish(t, x.came)
		}
		patience.Stop(t, kid.cmd.Process)
		patience.Asleep(t)
		require.NoError(t, ask(ctx, s.sibling, words()[0]))
		require.NoError(t, kid.cmd.Process.Signal(syscall.SIGCONT))
	}
	x.enough.Store(true)
	require.NoError(t, patience.Finish(t, written))
	require.NoError(t, patience.Finish(t, compared))
	require.NoError(t, p.Close())
}

// exchange is messages that go to a child and come back.
type exchange struct {
	pipe    *pipe.Pipe
	message func(i int) *pipe.Message
	came    chan struct{} // has a token when a message has come back
	enough  atomic.Bool   // no more are to be sent
}

// write ends with a message of no parts.
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
		got, err := read(ctx, x.pipe)
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if len(got.Metadata) == 0 {
			return nil
		}
		if !alike(x.message(i), got) {
			return fmt.Errorf("message %d: %w", i, errOtherBytes)
		}
		select {
		case x.came <- struct{}{}:
		default:
		}
	}
}

func small(i int) *pipe.Message {
	m := mixed(4 * i)
	m.Payloads = []pipe.Payload{{Data: bytes.Repeat([]byte{byte(i)}, i%5000)}}
	return m
}

// mixed is the i-th message of a stream of small and large ones, of bytes of its own.
func mixed(i int) *pipe.Message {
	fill := func(seed, n int) device.Buffer {
		p := make([]byte, n)
		for k := range p {
			p[k] = byte(k>>12 + k*seed + i)
		}
		return device.Bytes(p)
	}
	m := &pipe.Message{Metadata: fmt.Append(nil, i)}
	m.Tensors = append(m.Tensors, pipe.Tensor{Buffer: fill(3, 1000+i%40), TargetDevice: device.CPU()})
	if i%4 > 0 {
		m.Tensors = append(m.Tensors, pipe.Tensor{Buffer: fill(5, i%40*150_000)})
	}
	return m
}
