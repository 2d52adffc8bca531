package uv_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// sessionsWith returns the two ends of a session over plain TCP, which are closed when the test ends.
func sessionsWith(t *testing.T, cfg transport.SessionConfig, options ...uv.Option) (client, server transport.Session) {
	t.Helper()
	tr := uv.New(options...)
	l, err := tr.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	d, err := tr.Dial(t.Context(), l.Addr())
	require.NoError(t, err)
	a, err := l.Accept(t.Context())
	require.NoError(t, err)
	server, err = a.(transport.Multiplexer).Multiplex(cfg)
	require.NoError(t, err)
	client, err = d.(transport.Multiplexer).Multiplex(transport.SessionConfig{Client: true, MaxStreams: 64})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// openPolled opens a stream and returns its two ends.
func openPolled(t *testing.T, client, server transport.Session) (opened, accepted transport.Poller) {
	t.Helper()
	o, err := client.Open()
	require.NoError(t, err)
	a, err := server.Accept(t.Context())
	require.NoError(t, err)
	return o.(transport.Poller), a.(transport.Poller)
}

func startWait(p transport.Poller) <-chan bool {
	return testwait.Start(func() bool {
		p.Wait()
		return true
	})
}

func writeTo(t *testing.T, s transport.Stream, text string) {
	t.Helper()
	_, err := s.Write([]byte(text))
	require.NoError(t, err)
}

// readPolled reads n bytes with TryRead, and waits where there are none.
func readPolled(t *testing.T, p transport.Poller, n int) string {
	t.Helper()
	got := make([]byte, 0, n)
	for len(got) < n {
		k, err := p.TryRead(got[len(got):n])
		require.NoError(t, err)
		if got = got[:len(got)+k]; k == 0 && !p.PollReadable(len(got)%2 == 0) {
			p.Wait()
		}
	}
	return string(got)
}

func TestWaitReturnsWhenReadable(t *testing.T) {
	for name, options := range map[string][]uv.Option{"default": nil, "no spin": {uv.WithSpin(0)}, "busy": {uv.WithBusyPolling()}} {
		t.Run(name, func(t *testing.T) {
			client, server := sessionsWith(t, transport.SessionConfig{MaxStreams: 4}, options...)
			writer, reader := openPolled(t, client, server)
			for range 3 {
				n, err := reader.TryRead(make([]byte, 1))
				require.NoError(t, err)
				require.Zero(t, n)
				done := startWait(reader)
				writeTo(t, writer, "x")
				require.Equal(t, "x", readPolledAfter(t, reader, done))
			}
			done := startWait(reader)
			reader.Wake()
			testwait.Finish(t, done)
			done = startWait(reader)
			require.NoError(t, writer.CloseWrite())
			testwait.Finish(t, done)
			require.Equal(t, io.EOF, readError(reader))
		})
	}
}

// readPolledAfter reads a byte after Wait, whose result done is, has returned.
func readPolledAfter(t *testing.T, p transport.Poller, done <-chan bool) string {
	t.Helper()
	testwait.Finish(t, done)
	return readPolled(t, p, 1)
}

// readError waits until TryRead returns an error.
func readError(p transport.Poller) error {
	for {
		if _, err := p.TryRead(make([]byte, 1)); err != nil {
			return err
		}
		p.Wait()
	}
}

// After a poll that has found bytes, others do not make Wait return until Arm is called.
func TestArm(t *testing.T) {
	client, server := sessionsWith(t, transport.SessionConfig{MaxStreams: 4})
	writer, reader := openPolled(t, client, server)
	for range 20 {
		writeTo(t, writer, "one")
		for !reader.PollReadable(true) {
			continue
		}
		require.Equal(t, "one", readPolled(t, reader, 3))
		done := startWait(reader)
		writeTo(t, writer, "two")
		reader.Arm()
		testwait.Finish(t, done)
		require.Equal(t, "two", readPolled(t, reader, 3))
	}
}

func TestWaitReturnsAtTheEnd(t *testing.T) {
	for name, end := range map[string]func(reader transport.Poller, client, server transport.Session){
		"stream":  func(reader transport.Poller, _, _ transport.Session) { reader.Close() },
		"session": func(_ transport.Poller, _, server transport.Session) { server.Close() },
		"peer":    func(_ transport.Poller, client, _ transport.Session) { client.Close() },
		"peer, while polled": func(reader transport.Poller, client, _ transport.Session) {
			reader.PollReadable(false)
			client.Close()
		},
		"peer, after a poll": func(reader transport.Poller, client, _ transport.Session) {
			stream, _ := client.Open() // whose message the poll receives
			reader.PollReadable(true)
			_ = stream.Close()
			client.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := sessionsWith(t, transport.SessionConfig{MaxStreams: 4})
			_, reader := openPolled(t, client, server)
			done := startWait(reader)
			end(reader, client, server)
			testwait.Finish(t, done)
			require.Error(t, readError(reader))
			require.True(t, reader.PollReadable(false))
		})
	}
}

// Bytes of other streams are received although the polled one is not polled any more, and no goroutine
// waits for it: after a while, or at once if they are expected.
func TestOtherStreamsAfterPolls(t *testing.T) {
	for name, expect := range map[string]func(transport.Poller){"": func(transport.Poller) {}, "expected": transport.Poller.ExpectOthers} {
		t.Run(name, func(t *testing.T) {
			client, server := sessionsWith(t, transport.SessionConfig{MaxStreams: 4})
			writer, reader := openPolled(t, client, server)
			other, far := openPolled(t, client, server)
			go reader.Wait() // until the end
			for range 20 {
				writeTo(t, writer, "x")
				for !reader.PollReadable(true) {
					continue
				}
				require.Equal(t, "x", readPolled(t, reader, 1))
				expect(reader)
				writeTo(t, other, "y")
				p := make([]byte, 1)
				_, err := io.ReadFull(far, p)
				require.NoError(t, err)
				ctx := t.Context()
				require.NoError(t, client.Flush(ctx))
				require.NoError(t, server.Flush(ctx))
			}
		})
	}
}

// Streams are opened and closed while a goroutine polls, more at once than may wait for yamux.
func TestManyStreamsWhilePolling(t *testing.T) {
	client, server := sessionsWith(t, transport.SessionConfig{MaxStreams: 1000})
	writer, reader := openPolled(t, client, server)
	opened := testwait.Start(func() error {
		for range 20 {
			var streams []transport.Stream
			for range 40 {
				s, err := client.Open()
				if err != nil {
					return err
				}
				if _, err := s.Write([]byte("hello")); err != nil {
					return err
				}
				streams = append(streams, s)
			}
			for _, s := range streams {
				s.Close()
			}
		}
		_, err := writer.Write([]byte("end"))
		return err
	})
	accepted := testwait.Start(func() error {
		for range 20 * 40 {
			s, err := server.Accept(t.Context())
			if err != nil {
				return err
			}
			if got, err := io.ReadAll(s); err != nil || string(got) != "hello" {
				return io.ErrUnexpectedEOF
			}
			s.Close()
		}
		return nil
	})
	require.Equal(t, "end", readPolled(t, reader, 3))
	require.NoError(t, <-opened)
	require.NoError(t, <-accepted)
}

// hesitant is a quota that refuses bytes that are charged without waiting.
type hesitant struct{}

func (hesitant) Charge(int) bool    { return true }
func (hesitant) TryCharge(int) bool { return false }
func (hesitant) Add(int)            {}
func (hesitant) Release(int)        {}

// Bytes of all streams arrive in order, whichever goroutine receives them: one that polls, one that
// waits, or that of the session, which alone may wait for the quota.
func TestPolledStreamsKeepOrder(t *testing.T) {
	for name, quota := range map[string]transport.Quota{"": nil, "quota": hesitant{}} {
		t.Run(name, func(t *testing.T) {
			client, server := sessionsWith(t, transport.SessionConfig{MaxStreams: 4, Quota: quota})
			writer, reader := openPolled(t, client, server)
			other, far := openPolled(t, client, server)
			want := make([]byte, 8<<20)
			for i := range want {
				want[i] = byte(i % 251)
			}
			write := func(s transport.Stream) func() error {
				return func() error {
					for p := want; len(p) > 0; {
						n := min(len(p), 1+rand.IntN(300<<10))
						if _, err := s.Write(p[:n]); err != nil {
							return err
						}
						p = p[n:]
					}
					return s.CloseWrite()
				}
			}
			first, second := testwait.Start(write(writer)), testwait.Start(write(other))
			got := testwait.Start(func() []byte {
				got, _ := io.ReadAll(far)
				return got
			})
			var mine []byte
			p := make([]byte, 100<<10)
			for {
				n, err := reader.TryRead(p[:1+rand.IntN(len(p))])
				mine = append(mine, p[:n]...)
				if err != nil {
					require.Equal(t, io.EOF, err)
					break
				}
				if n == 0 && (rand.IntN(2) == 0 || !reader.PollReadable(rand.IntN(2) == 0)) {
					reader.Arm()
					reader.Wait()
				}
			}
			require.NoError(t, <-first)
			require.NoError(t, <-second)
			require.True(t, bytes.Equal(want, mine))
			require.True(t, bytes.Equal(want, <-got))
		})
	}
}

// The end of the connection ends the session although a goroutine only polls.
func TestPeerDiesWhilePolled(t *testing.T) {
	client, server := sessionsWith(t, transport.SessionConfig{MaxStreams: 4})
	_, reader := openPolled(t, client, server)
	go reader.Wait()
	reader.PollReadable(true)
	require.NoError(t, client.Close())
	testwait.Finish(t, server.Done())
}
