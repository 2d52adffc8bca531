package pipe_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// polled is a transport whose streams can be polled, as those over shared memory
// can, but in virtual time and at any pace: what comes shows bit by bit.
type polled struct {
	transport.Transport
	tap *tap
}

// tap says how much of the streams shows at once.
type tap struct {
	mu    sync.Mutex // of the streams, too
	moved *sync.Cond // something is different
	left  int        // bytes until the tap is shut
	piece int
	roomy bool // what is written is taken in, so that much is
	looks int  // calls of Look under way
	waits int  // and of Await

	onLook func() // what happens when Look is called
}

func newTap(piece int) *tap {
	t := &tap{left: 1 << 40, piece: piece}
	t.moved = sync.NewCond(&t.mu)
	return t
}

// set shuts the tap after n more bytes.
func (t *tap) set(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = n
	t.moved.Broadcast()
}

// whenLooked has f done whenever somebody looks.
func (t *tap) whenLooked(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onLook = f
}

// await waits until so many calls of Look and Await are under way.
func (t *tap) await(looks, waits int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.looks != looks || t.waits != waits {
		t.moved.Wait()
	}
}

func (p polled) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := p.Transport.Listen(ctx, addr)
	return polledListener{l, p.tap}, err
}

func (p polled) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := p.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return polledConn{c, p.tap}, nil
}

type polledListener struct {
	transport.Listener
	tap *tap
}

func (l polledListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return polledConn{c, l.tap}, nil
}

type polledConn struct {
	transport.Conn
	tap *tap
}

func (c polledConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Conn.(transport.Multiplexer).Multiplex(cfg)
	if err != nil {
		return nil, err
	}
	return polledSession{s, c.tap}, nil
}

func (c polledConn) Stream() (transport.Stream, error) { return c.Conn.(transport.Streamer).Stream() }

type polledSession struct {
	transport.Session
	tap *tap
}

func (s polledSession) Open() (transport.Stream, error) { return s.wrap(s.Session.Open()) }

func (s polledSession) Accept(ctx context.Context) (transport.Stream, error) {
	return s.wrap(s.Session.Accept(ctx))
}

func (s polledSession) wrap(st transport.Stream, err error) (transport.Stream, error) {
	if err != nil {
		return nil, err
	}
	return &polledStream{Stream: st, tap: s.tap}, nil
}

// polledStream makes a Poller of a stream, from which a goroutine reads ahead.
type polledStream struct {
	transport.Stream
	tap   *tap
	start sync.Once

	// The following are guarded by tap.mu.
	has     []byte
	err     error
	looking bool
	woken   bool
}

func (s *polledStream) pump() {
	buf := make([]byte, 32<<10)
	for s.err == nil {
		n, err := s.Stream.Read(buf)
		s.tap.mu.Lock()
		s.has, s.err = append(s.has, buf[:n]...), err
		s.tap.moved.Broadcast()
		s.tap.mu.Unlock()
	}
}

func (s *polledStream) TryRead(p []byte) (int, error) {
	s.start.Do(func() { go s.pump() })
	s.tap.mu.Lock()
	defer s.tap.mu.Unlock()
	n := min(len(p), len(s.has), s.tap.left, s.tap.piece)
	copy(p, s.has[:n])
	s.has = s.has[n:]
	s.tap.left -= n
	if n == 0 {
		return 0, s.err // also where the tap was shut before all had come
	}
	return n, nil
}

func (s *polledStream) TryWrite(pieces ...[]byte) (n int, err error) {
	const room = 40 << 10 // like that of a ring
	for _, p := range pieces {
		p = p[:min(len(p), room-n)]
		k, err := s.Stream.Write(p)
		if n += k; err != nil || n == room {
			return n, err
		}
	}
	return n, nil
}

func (s *polledStream) Room() bool { return s.tap.roomy }

func (s *polledStream) there() bool { return s.err != nil || s.tap.left > 0 && len(s.has) > 0 }

func (s *polledStream) Await() {
	s.tap.mu.Lock()
	defer s.tap.mu.Unlock()
	s.tap.waits++
	s.tap.moved.Broadcast()
	for !s.woken && s.err == nil && (s.looking || !s.there()) {
		s.tap.moved.Wait()
	}
	s.tap.waits--
	s.woken = false
}

// Look waits for something as long as the tap is open.
func (s *polledStream) Look() bool {
	s.tap.mu.Lock()
	defer s.tap.mu.Unlock()
	if s.tap.onLook != nil {
		s.tap.onLook()
	}
	s.looking = true
	s.tap.looks++
	s.tap.moved.Broadcast()
	for !s.there() && s.tap.left > 0 {
		s.tap.moved.Wait()
	}
	s.tap.looks--
	s.looking = s.there()
	s.tap.moved.Broadcast()
	return s.looking
}

func (s *polledStream) Mind() { s.tell(func() { s.looking = false }) }
func (s *polledStream) Wake() { s.tell(func() { s.woken = true }) }

func (s *polledStream) tell(change func()) {
	s.tap.mu.Lock()
	defer s.tap.mu.Unlock()
	change()
	s.tap.moved.Broadcast()
}

// connectPolled opens a pipe whose message streams are polled through the tap.
func connectPolled(t *testing.T, tap *tap) (client, server *pipe.Pipe) {
	network := mem.NewNetwork()
	return connect(t, path{
		dialect: pipe.DialectNative,
		url:     "mem://",
		opts: func() pipe.Options {
			return pipe.Options{
				Dialect:    pipe.DialectNative,
				Transports: []pipe.TransportEntry{{Name: "mem", Transport: polled{mem.New(network), tap}}},
				Channels:   []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}},
			}
		},
	})
}

// writeEarly writes a message while the other end looks for it, and returns it as
// it comes: before its bytes have.
func writeEarly(t *testing.T, tap *tap, client, server *pipe.Pipe, m *pipe.Message) *pipe.Incoming {
	t.Helper()
	tap.await(0, 2)
	found := make(chan *pipe.Incoming, 1)
	go func() {
		in, _ := server.Next(testContext(t))
		found <- in
	}()
	tap.await(1, 2)
	write(t, client, m)
	in := <-found
	require.NotNil(t, in)
	return in
}

// inlineMessage is one of which the parts, many bytes, travel inside it.
func inlineMessage(seed int) *pipe.Message {
	return message(seed, []int{60_000, 0, 1}, []int{64 << 10, 5, 30_000})
}

// What is larger than usual travels inside a message, too, to a peer that waits.
func TestPolledLargeParts(t *testing.T) {
	tap := newTap(1 << 20)
	tap.roomy = true
	client, server := connectPolled(t, tap)
	for i, n := range []int{200_000, 1<<20 - 300_007, 1<<20 + 1} {
		m := message(i, []int{7}, []int{n, 300_000})
		op := client.WriteAsync(testContext(t), m)
		expect(t, server, m)
		require.NoError(t, op.Wait(testContext(t)))
	}
	require.EqualValues(t, 1<<20+1+300_000, channelBytes(server), "of the message that is too large")
}

func channelBytes(p *pipe.Pipe) (n uint64) {
	for _, c := range p.Stats().Channels {
		n += c.Received.Bytes
	}
	return n
}

func TestPolledMessages(t *testing.T) {
	for _, piece := range []int{1 << 20, 5000, 777} {
		client, server := connectPolled(t, newTap(piece))
		for i := range 6 {
			m := inlineMessage(i)
			write(t, client, m)
			expect(t, server, m)
			small := message(i, []int{i}, []int{3})
			write(t, server, small)
			expect(t, client, small)
		}
	}
}

// A message of which the bytes are still coming does not hold up those behind it,
// and can be read after them.
func TestPolledReadsInAnyOrder(t *testing.T) {
	client, server := connectPolled(t, newTap(3000))
	var sent []*pipe.Message
	var got []*pipe.Incoming
	for i := range 5 {
		sent = append(sent, inlineMessage(i))
		write(t, client, sent[i])
	}
	for range sent {
		got = append(got, next(t, server))
	}
	for _, k := range []int{4, 0, 2, 1, 3} {
		same(t, sent[k], got[k].Descriptor(), read(t, got[k]))
		got[k].Release()
	}
}

func TestPolledDiscard(t *testing.T) {
	tap := newTap(3000)
	client, server := connectPolled(t, tap)
	for i := range 4 {
		in := writeEarly(t, tap, client, server, inlineMessage(i))
		write(t, client, inlineMessage(10+i))
		require.NoError(t, in.Discard(testContext(t)))
		in.Release()
		expect(t, server, inlineMessage(10+i))
	}
}

// Memory in pieces, or of another kind, takes the way through the pipe's own.
func TestPolledIntoScatteredMemory(t *testing.T) {
	tap := newTap(3000)
	client, server := connectPolled(t, tap)
	m := message(1, nil, []int{50_000, 20_000})
	in := writeEarly(t, tap, client, server, m)
	whole := pipe.NewAllocation(in.Descriptor())
	p, _ := whole.Tensors[0].Contiguous()
	pieces := device.Host(p[:100], p[100:30_000], p[30_000:])
	require.NoError(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{pieces, whole.Tensors[1]}}))
	same(t, m, in.Descriptor(), whole)
}

// A Read that is given up while bytes are coming lets go of its memory; they pass
// by, and what is behind them arrives.
func TestPolledReadIsGivenUp(t *testing.T) {
	tap := newTap(1 << 20)
	client, server := connectPolled(t, tap)
	tap.set(40_000)
	in := writeEarly(t, tap, client, server, inlineMessage(1))
	ctx, cancel := cancelled(t)
	a := pipe.NewAllocation(in.Descriptor())
	failed := make(chan error, 1)
	go func() { failed <- in.Read(ctx, a) }()
	cancel()
	err := <-failed
	require.ErrorIs(t, err, errEnough)
	for _, p := range a.Payloads {
		clear(p) // the race detector sees whoever still writes it
	}
	write(t, client, inlineMessage(2))
	tap.set(1 << 40)
	expectOrReread(t, server, in)
	expect(t, server, inlineMessage(2))
}

// expectOrReread reads a message once more if its first Read had not begun.
func expectOrReread(t *testing.T, p *pipe.Pipe, in *pipe.Incoming) {
	a := pipe.NewAllocation(in.Descriptor())
	if err := in.Read(testContext(t), a); err != nil {
		require.ErrorIs(t, err, pipe.ErrAlreadyRead)
		return
	}
	same(t, inlineMessage(1), in.Descriptor(), a)
}

func TestPolledPeerIsLostWithinAMessage(t *testing.T) {
	tap := newTap(1 << 20)
	client, server := connectPolled(t, tap)
	tap.set(40_000)
	in := writeEarly(t, tap, client, server, inlineMessage(1))
	failed := make(chan error, 1)
	go func() { failed <- in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())) }()
	client.Abort(errEnough)
	err := <-failed
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.ErrorContains(t, err, errEnough.Error())
}

// Several goroutines wait for messages: each message reaches one of them, whoever
// finds it.
func TestPolledByMany(t *testing.T) {
	client, server := connectPolled(t, newTap(4000))
	const readers, count = 4, 40
	got := make(chan string, count)
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for range count / readers {
				in, err := server.Next(testContext(t))
				if err == nil {
					err = in.Read(testContext(t), pipe.NewAllocation(in.Descriptor()))
				}
				if err != nil {
					got <- err.Error()
					continue
				}
				got <- string(in.Descriptor().Metadata)
			}
		})
	}
	want := map[string]bool{}
	for i := range count {
		m := message(i, []int{i * 700}, nil)
		want[string(m.Metadata)] = true
		write(t, client, m)
	}
	all.Wait()
	for range count {
		text := <-got
		require.True(t, want[text], text)
		delete(want, text)
	}
}

// Who discards a message leaves the stream to those who wait for others.
func TestPolledDiscardBesideAnother(t *testing.T) {
	tap := newTap(1 << 20)
	client, server := connectPolled(t, tap)
	tap.set(40_000)
	in := writeEarly(t, tap, client, server, inlineMessage(1))
	other := make(chan *pipe.Incoming, 1)
	go func() {
		second, _ := server.Next(testContext(t))
		other <- second
	}()
	require.NoError(t, in.Discard(testContext(t)))
	write(t, client, inlineMessage(2))
	tap.set(1 << 40)
	second := <-other
	require.NotNil(t, second)
	same(t, inlineMessage(2), second.Descriptor(), read(t, second))
}

// Who gives up a Read just when bytes come leaves the stream to those who wait for
// others.
func TestPolledReadIsGivenUpBesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap := newTap(1 << 20)
		client, server := connectPolled(t, tap)
		tap.set(40_000)
		in := writeEarly(t, tap, client, server, inlineMessage(1))
		other := make(chan *pipe.Incoming, 1)
		go func() {
			second, _ := server.Next(testContext(t))
			other <- second
		}()
		<-time.NewTimer(time.Second).C // nobody is about to hand the stream on
		ctx, cancel := cancelled(t)
		tap.whenLooked(func() { tap.left = 1000; cancel() })
		require.ErrorIs(t, in.Read(ctx, pipe.NewAllocation(in.Descriptor())), errEnough)
		tap.whenLooked(nil)
		write(t, client, inlineMessage(2))
		tap.set(1 << 40)
		second := <-other
		require.NotNil(t, second)
		same(t, inlineMessage(2), second.Descriptor(), read(t, second))
		second.Release()
		server.Abort(nil)
		client.Abort(nil)
	})
}
