package pipe_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestParity runs each case of the core tests of TensorPipe, the C++ library, on every path.
func TestParity(t *testing.T) {
	cpu, any := device.CPU(), device.Device{}
	cases := map[string]func(t *testing.T, client, server *pathEnd){
		"SimpleWriteRead": func(t *testing.T, client, server *pathEnd) {
			bothWays(t, client, server, message(1, []int{20, 0, 300}, client.large(256, 1<<20, 10)))
		},
		"SimpleWriteReadPayloadsOnly": func(t *testing.T, client, server *pathEnd) {
			bothWays(t, client, server, message(2, []int{1, 2, client.path.inline + 1<<20}, nil))
		},
		"SimpleWriteReadTensorsOnly": func(t *testing.T, client, server *pathEnd) {
			bothWays(t, client, server, message(3, nil, client.large(8, 9, 1)))
		},
		"SimpleWriteReadWithAllTargetDevices": func(t *testing.T, client, server *pathEnd) {
			bothWays(t, client, server, message(4, []int{5, 6, 7}, client.large(8, 0, 9, 10), cpu, cpu, cpu, cpu))
		},
		"SimpleWriteReadWithSomeTargetDevices": func(t *testing.T, client, server *pathEnd) {
			bothWays(t, client, server, message(5, []int{5, 6, 7}, client.large(8, 16, 0, 32), cpu, any, any, cpu))
		},
		"MultipleWriteRead": func(t *testing.T, client, server *pathEnd) {
			bothWays(t, client, server,
				message(6, []int{10}, client.large(20)), message(7, []int{30, 31}, client.large(40, 41)))
		},
		"MultipleWriteReadWithSomeTargetDevices": func(t *testing.T, client, server *pathEnd) {
			bothWays(t, client, server,
				message(8, []int{10}, client.large(20, 21), any, cpu),
				message(9, []int{11}, client.large(40), cpu),
				message(10, nil, client.large(4, 5), cpu, any))
		},
		"WriteFromBothThenRead": writeFromBothThenRead,
		"ClientPingSerial":      clientPingSerial,
		"ClientPingInline":      clientPingInline,
		"ServerPingPongTwice":   serverPingPongTwice,
		"MixedTensorMessage":    mixedTensorMessage,
	}
	for name, f := range cases {
		for _, dialect := range []pipe.Dialect{pipe.DialectCompatible, pipe.DialectNative} {
			parity.Case(t, "tensorpipe/core."+name+"@"+string(dialect), func(t *testing.T) { onPathEnds(t, dialect, f) })
		}
	}
	parity.Case(t, "tensorpipe/core.ClosingAbortsOperations", closingAbortsOperations)
}

// bothWays checks that messages arrive from the client at the server, and after that from the
// server at the client. In each direction it starts all writes before the first read, and all reads
// before it waits for one.
func bothWays(t *testing.T, client, server *pathEnd, messages ...*pipe.Message) {
	for _, from := range []*pathEnd{client, server} {
		var writes []*pathWrite
		for _, m := range messages {
			writes = append(writes, from.write(t, m))
		}
		for i, r := range readAll(t, from.peer, writes) {
			r.expect(t, messages[i])
		}
		requireWritten(t, writes...)
	}
}

// readAll receives the descriptors of writes at the end to, in the order of the writes, starts to
// read each message, and returns the reads without waiting for them.
func readAll(t *testing.T, to *pathEnd, writes []*pathWrite) []*pathRead {
	var reads []*pathRead
	for _, w := range writes {
		reads = append(reads, to.read(t, to.next(t, w), w))
	}
	return reads
}

func writeFromBothThenRead(t *testing.T, client, server *pathEnd) {
	fromClient := client.write(t, message(11, []int{100}, client.large(200, 300)))
	fromServer := server.write(t, message(12, []int{400}, server.large(500)))
	toServer, toClient := server.next(t, fromClient), client.next(t, fromServer)
	atServer, atClient := server.read(t, toServer, fromClient), client.read(t, toClient, fromServer)
	atServer.expect(t, fromClient.message)
	atClient.expect(t, fromServer.message)
	requireWritten(t, fromClient, fromServer)
}

func clientPingSerial(t *testing.T, client, server *pathEnd) {
	w := client.write(t, message(13, []int{1, 2, 3, 4}, client.large(5, 6, 7, 8)))
	in := server.next(t, w)
	require.Len(t, in.Descriptor().Payloads, 4)
	require.Len(t, in.Descriptor().Tensors, 4)
	server.read(t, in, w).expect(t, w.message)
	requireWritten(t, w)
}

// clientPingInline checks that a message arrives if the server reads it on the goroutine that calls
// Next, while the client waits for its write.
func clientPingInline(t *testing.T, client, server *pathEnd) {
	type handled struct {
		d    *pipe.Descriptor
		a    pipe.Allocation
		sent pipe.Traffic // by the client's channel before the read
		err  error
	}
	done := make(chan handled, 1)
	ctx := testContext(t)
	go func() {
		var h handled
		in, err := server.Next(ctx)
		if err != nil {
			done <- handled{err: err}
			return
		}
		h.sent = client.Stats().Channels[0].Sent
		h.d = in.Descriptor()
		h.a = pipe.NewAllocation(h.d)
		h.err = in.Read(ctx, h.a)
		done <- h
	}()
	w := client.write(t, message(14, []int{1, 2, 3, 4}, client.large(5, 6, 7, 8)))
	requireWritten(t, w)
	h := <-done
	require.NoError(t, h.err)
	require.Zero(t, h.sent, "tensors were sent before the receiver chose their devices")
	same(t, w.message, h.d, h.a)
}

func serverPingPongTwice(t *testing.T, client, server *pathEnd) {
	for round := range 2 {
		pings := []*pathWrite{
			server.write(t, message(20+round, []int{10, 11, 12, 13}, server.large(20, 21, 22, 23))),
			server.write(t, message(30+round, []int{14, 15, 16, 17}, server.large(24, 25, 26, 27))),
		}
		var pongs []*pathWrite
		for i, r := range readAll(t, client, pings) {
			r.expect(t, pings[i].message)
			pongs = append(pongs, client.write(t, r.message()))
		}
		requireWritten(t, pings...)
		for i, r := range readAll(t, server, pongs) {
			r.expect(t, pings[i].message)
		}
		requireWritten(t, pongs...)
	}
}

func mixedTensorMessage(t *testing.T, client, server *pathEnd) {
	full := client.write(t, message(40, []int{10, 20, 30, 40}, client.large(30, 40, 50, 60)))
	empty := client.write(t, &pipe.Message{})
	first := server.next(t, full)
	second := server.next(t, empty)
	secondRead := server.read(t, second, empty)
	server.read(t, first, full).expect(t, full.message)
	secondRead.expect(t, empty.message)
	requireWritten(t, full, empty)
}

func closingAbortsOperations(t *testing.T) {
	for _, path := range paths() {
		t.Run(path.name, func(t *testing.T) {
			c := newContext(t, path)
			l, err := c.Listen(testContext(t), path.url)
			require.NoError(t, err)
			pending := testwait.StartBlocked(t, "Accept", func() error {
				_, err := l.Accept(testContext(t))
				return err
			})
			require.NoError(t, l.Close())
			require.ErrorIs(t, testwait.Finish(t, pending), pipe.ErrClosed)
			_, err = l.Accept(testContext(t))
			require.ErrorIs(t, err, pipe.ErrClosed)
		})
	}
	t.Run("while Accept is blocked", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, err := newContext(t, memPath(), defaultTimeouts).Listen(t.Context(), memPath().url)
			require.NoError(t, err)
			pending := make(chan error, 1)
			go func() {
				_, err := l.Accept(t.Context())
				pending <- err
			}()
			synctest.Wait()
			require.NoError(t, l.Close())
			require.ErrorIs(t, <-pending, pipe.ErrClosed)
		})
	})
}
