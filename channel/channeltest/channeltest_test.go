package channeltest_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// faultVar is the environment variable that names the fault of a subprocess's channel.
const faultVar = "CHANNELTEST_FAULT"

func TestMain(m *testing.M) {
	if os.Getenv(faultVar) != "" {
		os.Exit(m.Run()) // a faulty channel may leak
	}
	leakcheck.Main(m)
}

// closedErrors matches the errors of a case whose channel is closed unexpectedly: the cause at the
// end that closed it, and the error of the next read or write at the other.
const closedErrors = "a cause given by the test|EOF|broken pipe"

// channelFaults are modifications of a working channel, with the case of the suite that must fail
// and a pattern of its output.
var channelFaults = map[string]struct {
	failing, wantOutput string
	timeLimit           time.Duration
	descriptor          func(string) string
	link                func(*channel.Link)
	wrap                func(channel.Channel) channel.Channel
}{
	"descriptors are empty": {
		failing: "tensorpipe/channel.DeviceDescriptors@basic", wantOutput: "descriptor of cpu:0",
		descriptor: func(string) string { return "" },
	},
	"done is called twice": {
		failing: "Transfer/OneAtATime", wantOutput: "is call 2",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, send: func(id uint64, src device.Buffer, done func(error)) {
				c.Send(id, src, func(err error) { done(err); done(err) })
			}}
		},
	},
	"reads after done": {
		failing: "Transfer/MemoryIsFreeAfterDone", wantOutput: "wrong bytes|DATA RACE",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, send: func(id uint64, src device.Buffer, done func(error)) {
				go func() {
					done(nil)
					for range 1000 {
						runtime.Gosched() // the test overwrites src concurrently
					}
					c.Send(id, src, func(error) {})
				}()
			}}
		},
	},
	"delivers other bytes": {
		failing: "tensorpipe/channel.ClientToServer@basic", wantOutput: "wrong bytes|DATA RACE",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, recv: func(id uint64, dst device.Buffer, done func(error)) {
				c.Recv(id, dst, func(err error) {
					p, _ := dst.Contiguous()
					p[len(p)/2]++
					done(err)
				})
			}}
		},
	},
	"ignores the sender's stream": {
		failing: "Streams/cpu:0/SenderWaitsForItsStream", wantOutput: "wrong bytes|DATA RACE",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, send: func(id uint64, src device.Buffer, done func(error)) {
				c.Send(id, src.WithStream(nil), done)
			}}
		},
	},
	"ignores the receiver's stream": {
		failing: "Streams/cpu:0/ReceiverWaitsForItsStream", wantOutput: "wrong bytes|DATA RACE",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, recv: func(id uint64, dst device.Buffer, done func(error)) {
				c.Recv(id, dst.WithStream(nil), done)
			}}
		},
	},
	"aborts completed transfers": {
		failing: "Abort/UnknownAndDoneIdsAreIgnored", wantOutput: closedErrors,
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, abort: func(_ uint64, cause error) { go c.Close(cause) }}
		},
	},
	"Close does not wait": {
		failing: "Close/EndsAllTransfers", wantOutput: "0 calls of done after Close|after TestFaultyChannel/Close/EndsAllTransfers has completed",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, close: func(error) error { return nil }}
		},
	},
	"discards tensors": {
		failing: "Transfer/OneAtATime", wantOutput: "not over after 200ms",
		timeLimit: 200 * time.Millisecond,
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, send: func(_ uint64, _ device.Buffer, done func(error)) { go done(nil) }}
		},
	},
	"Send blocks until the connection ends": {
		failing: "Transfer/OneAtATime", wantOutput: "not over after 200ms",
		timeLimit: 200 * time.Millisecond,
		wrap: func(c channel.Channel) channel.Channel {
			ended := make(chan error, 1)
			c.Recv(0, device.Bytes(make([]byte, 1)), func(err error) { ended <- err })
			return faulty{Channel: c, send: func(_ uint64, _ device.Buffer, done func(error)) {
				err := <-ended
				go done(err)
			}}
		},
	},
	"ignores ids": {
		failing: "Native/Ids/AnyOrder", wantOutput: "wrong bytes|bytes where|Received unexpected error",
		wrap: func(c channel.Channel) channel.Channel {
			var sends, recvs uint64
			return faulty{
				Channel: c,
				send:    func(_ uint64, src device.Buffer, done func(error)) { sends++; c.Send(sends, src, done) },
				recv:    func(_ uint64, dst device.Buffer, done func(error)) { recvs++; c.Recv(recvs, dst, done) },
			}
		},
	},
	"aborts all transfers": {
		failing: "Native/Ids/AbortAtEveryStage", wantOutput: closedErrors + "|peer gave up the transfer",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, abort: func(_ uint64, cause error) { go c.Close(cause) }}
		},
	},
	"EndRecv does nothing": {
		failing: "EndRecv/UnreceivedTensor", wantOutput: "not over after 200ms",
		timeLimit: 200 * time.Millisecond,
		wrap:      func(c channel.Channel) channel.Channel { return faulty{Channel: c, endRecv: func() {}} },
	},
	"Broken is called twice": {
		failing: "PeerLoss/PeerClosesIdleChannel", wantOutput: "is call 2",
		link: func(l *channel.Link) {
			notify := l.Broken
			l.Broken = func(err error) { notify(err); notify(err) }
		},
	},
}

// faulty is a channel with replaceable methods.
type faulty struct {
	channel.Channel
	send, recv func(id uint64, b device.Buffer, done func(error))
	abort      func(id uint64, cause error)
	close      func(cause error) error
	endRecv    func()
}

func (f faulty) Send(id uint64, src device.Buffer, done func(error)) {
	if f.send == nil {
		f.send = f.Channel.Send
	}
	f.send(id, src, done)
}

func (f faulty) Recv(id uint64, dst device.Buffer, done func(error)) {
	if f.recv == nil {
		f.recv = f.Channel.Recv
	}
	f.recv(id, dst, done)
}

func (f faulty) Abort(id uint64, cause error) {
	if f.abort == nil {
		f.abort = f.Channel.Abort
	}
	f.abort(id, cause)
}

func (f faulty) Close(cause error) error {
	if f.close == nil {
		f.close = f.Channel.Close
	}
	return f.close(cause)
}

func (f faulty) Fits(src device.Buffer) error { return f.Channel.(channel.Compatible).Fits(src) }

func (f faulty) Discard(id uint64, n int, done func(error)) {
	f.Channel.(channel.Compatible).Discard(id, n, done)
}

func (f faulty) EndRecv() {
	if f.endRecv == nil {
		f.endRecv = f.Channel.(channel.Compatible).EndRecv
	}
	f.endRecv()
}

type faultyFactory struct {
	basic.Factory
	fault string
}

func (f faultyFactory) DeviceDescriptors() map[device.Device]string {
	texts := f.Factory.DeviceDescriptors()
	if change := channelFaults[f.fault].descriptor; change != nil {
		for d, text := range texts {
			texts[d] = change(text)
		}
	}
	return texts
}

func (f faultyFactory) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	fault := channelFaults[f.fault]
	if fault.link != nil {
		fault.link(&link)
	}
	c, err := f.Factory.New(ctx, link, role)
	if err == nil && fault.wrap != nil {
		c = fault.wrap(c)
	}
	return c, err
}

func backend(t *testing.T, f channel.Factory) channeltest.Backend {
	kind := delayed.New("late", 1)
	t.Cleanup(kind.Close)
	return channeltest.Backend{
		Name:    basic.Name,
		New:     func(*testing.T) channel.Factory { return f },
		Connect: channeltest.Over(mem.New(nil), ""),
		Kinds:   []device.Kind{kind},
		Hold:    func(s device.Stream) func() { return s.(*delayed.Stream).Hold() },
	}
}

// TestFaultyChannel runs the suite on a channel with the fault that an environment variable names.
// It is skipped without the variable, which only TestFaultsAreFound sets, in subprocesses.
func TestFaultyChannel(t *testing.T) {
	fault := os.Getenv(faultVar)
	if fault == "" {
		t.Skip("runs in the subprocesses of TestFaultsAreFound")
	}
	b := backend(t, faultyFactory{fault: fault})
	b.Timeout = channelFaults[fault].timeLimit
	channeltest.Run(t, b)
}

// The suite fails, in the expected test and with the expected message, for a channel with each of
// the faults in channelFaults. Some faults show only if goroutines run in a certain order, so each
// one is given up to ten runs.
func TestFaultsAreFound(t *testing.T) {
	for name, fault := range channelFaults {
		t.Run(name, func(t *testing.T) {
			out, err := runFaulty(name, fault.failing)
			for range 9 {
				if err == nil {
					out, err = runFaulty(name, fault.failing)
				}
			}
			require.Error(t, err, out)
			require.Regexp(t, fault.wantOutput, out)
			require.Regexp(t, "(--- FAIL:|panic:.*) TestFaultyChannel/"+regexp.QuoteMeta(fault.failing), out)
			require.Regexp(t, "panic:|the rule that was broken, of package channel: ", out)
		})
	}
}

// runFaulty runs the subtest run of TestFaultyChannel in a subprocess, with the given fault in the
// channel. It returns the output of the subprocess, and an error if the test failed there.
func runFaulty(fault, run string) (output string, err error) {
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestFaultyChannel$/"+run)
	cmd.Env = append(os.Environ(), faultVar+"="+fault)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Run skips the test if the channel is not viable.
func TestNotViable(t *testing.T) {
	reason := &transport.NotSupportedError{Capability: "basic", Reason: "to test the skip"}
	skipped := t.Run("skips", func(t *testing.T) {
		t.Cleanup(func() { require.True(t, t.Skipped()) })
		channeltest.Run(t, backend(t, notViable{reason: reason}))
	})
	require.True(t, skipped)
}

type notViable struct {
	basic.Factory
	reason error
}

func (f notViable) Viable() error { return f.reason }
