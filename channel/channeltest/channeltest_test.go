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
	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// faultVar tells a child process which fault its channel shall have.
const faultVar = "CHANNELTEST_FAULT"

func TestMain(m *testing.M) {
	if os.Getenv(faultVar) != "" {
		os.Exit(m.Run()) // what a broken channel leaves behind is not the point
	}
	leakcheck.Main(m)
}

// channelOver is what a case may meet that finds its channel closed: the cause
// at the end that closed it, and at the other one what its next read or write
// gives, whichever comes first.
const channelOver = "a cause of the test's own|EOF|broken pipe"

// faults are ways to break a channel that works, each with a case of the suite
// that must find it and what that may say.
var faults = map[string]struct {
	finds, says string
	patience    time.Duration
	descriptor  func(string) string
	link        func(*channel.Link)
	wrap        func(channel.Channel) channel.Channel
}{
	"descriptors are empty": {
		finds: "tensorpipe/channel.DeviceDescriptors@basic", says: "descriptor of cpu:0",
		descriptor: func(string) string { return "" },
	},
	"done comes twice": {
		finds: "Transfer/OneAtATime", says: "is call 2",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, send: func(id uint64, src device.Buffer, done func(error)) {
				c.Send(id, src, func(err error) { done(err); done(err) })
			}}
		},
	},
	"reads behind done": {
		finds: "Transfer/MemoryIsFreeAfterDone", says: "wrong bytes|DATA RACE",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, send: func(id uint64, src device.Buffer, done func(error)) {
				go func() {
					done(nil)
					for range 1000 {
						runtime.Gosched() // the test overwrites src meanwhile
					}
					c.Send(id, src, func(error) {})
				}()
			}}
		},
	},
	"delivers other bytes": {
		finds: "tensorpipe/channel.ClientToServer@basic", says: "wrong bytes|DATA RACE",
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
		finds: "Streams/cpu:0/SenderWaitsForItsStream", says: "wrong bytes|DATA RACE",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, send: func(id uint64, src device.Buffer, done func(error)) {
				c.Send(id, src.WithStream(nil), done)
			}}
		},
	},
	"ignores the receiver's stream": {
		finds: "Streams/cpu:0/ReceiverWaitsForItsStream", says: "wrong bytes|DATA RACE",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, recv: func(id uint64, dst device.Buffer, done func(error)) {
				c.Recv(id, dst.WithStream(nil), done)
			}}
		},
	},
	"aborts what is done": {
		finds: "Abort/UnknownAndDoneIdsAreIgnored", says: channelOver,
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, abort: func(_ uint64, cause error) { go c.Close(cause) }}
		},
	},
	"Close does not wait": {
		finds: "Close/EndsAllTransfers", says: "0 calls of done after Close|after TestVictim/Close/EndsAllTransfers has completed",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, close: func(error) error { return nil }}
		},
	},
	"swallows tensors": {
		finds: "Transfer/OneAtATime", says: "not over after 200ms",
		patience: 200 * time.Millisecond,
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, send: func(_ uint64, _ device.Buffer, done func(error)) { go done(nil) }}
		},
	},
	"Send blocks until the connection ends": {
		finds: "Transfer/OneAtATime", says: "not over after 200ms",
		patience: 200 * time.Millisecond,
		wrap: func(c channel.Channel) channel.Channel {
			ended := make(chan error, 1)
			c.Recv(0, device.Bytes(make([]byte, 1)), func(err error) { ended <- err })
			return faulty{Channel: c, send: func(_ uint64, _ device.Buffer, done func(error)) {
				err := <-ended
				go done(err)
			}}
		},
	},
	"takes ids for places in a queue": {
		finds: "Native/Ids/AnyOrder", says: "wrong bytes|bytes where|Received unexpected error",
		wrap: func(c channel.Channel) channel.Channel {
			var sends, recvs uint64
			return faulty{
				Channel: c,
				send:    func(_ uint64, src device.Buffer, done func(error)) { sends++; c.Send(sends, src, done) },
				recv:    func(_ uint64, dst device.Buffer, done func(error)) { recvs++; c.Recv(recvs, dst, done) },
			}
		},
	},
	"aborts all for one": {
		finds: "Native/Ids/AbortAtEveryStage", says: channelOver + "|peer gave up the transfer",
		wrap: func(c channel.Channel) channel.Channel {
			return faulty{Channel: c, abort: func(_ uint64, cause error) { go c.Close(cause) }}
		},
	},
	"EndRecv does nothing": {
		finds: "Ender/WhatIsNotReceived", says: "not over after 200ms",
		patience: 200 * time.Millisecond,
		wrap:     func(c channel.Channel) channel.Channel { return faulty{Channel: c, endRecv: func() {}} },
	},
	"Broken comes twice": {
		finds: "Death/PeerClosesIdleChannel", says: "is call 2",
		link: func(l *channel.Link) {
			tell := l.Broken
			l.Broken = func(err error) { tell(err); tell(err) }
		},
	},
}

// faulty is a channel with some of its methods replaced.
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

func (f faulty) EndRecv() {
	if f.endRecv == nil {
		f.endRecv = f.Channel.(channel.Ender).EndRecv
	}
	f.endRecv()
}

type faultyFactory struct {
	basic.Factory
	fault string
}

func (f faultyFactory) DeviceDescriptors() map[device.Device]string {
	texts := f.Factory.DeviceDescriptors()
	if change := faults[f.fault].descriptor; change != nil {
		for d, text := range texts {
			texts[d] = change(text)
		}
	}
	return texts
}

func (f faultyFactory) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	fault := faults[f.fault]
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

// TestVictim is the process that has a fault.
func TestVictim(t *testing.T) {
	fault := os.Getenv(faultVar)
	if fault == "" {
		t.Skip("a child process of TestFaultsAreFound runs this")
	}
	b := backend(t, faultyFactory{fault: fault})
	b.Patience = faults[fault].patience
	channeltest.Run(t, b)
}

// A suite is worth what it finds. Some faults show only if goroutines run in a
// certain order, and may slip through a single run on a busy machine.
func TestFaultsAreFound(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			out, err := runVictim(name, fault.finds)
			for range 9 {
				if err == nil {
					out, err = runVictim(name, fault.finds)
				}
			}
			require.Error(t, err, out)
			require.Regexp(t, fault.says, out)
			require.Regexp(t, "(--- FAIL:|panic:.*) TestVictim/"+regexp.QuoteMeta(fault.finds), out)
		})
	}
}

// runVictim has the process say at once what it finds: one that panics keeps the rest to
// itself.
func runVictim(fault, run string) (output string, err error) {
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestVictim$/"+run)
	cmd.Env = append(os.Environ(), faultVar+"="+fault)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A channel that does not work here is skipped with the reason.
func TestNotViable(t *testing.T) {
	reason := &transport.NotSupportedError{Capability: "basic", Reason: "for the sake of the test"}
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
