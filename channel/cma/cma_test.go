package cma_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// transports lists the transports on which the channel is tested.
var transports = []struct {
	name string
	mk   func() transport.Transport
	addr string
}{
	{"mem", func() transport.Transport { return mem.New(nil) }, ""},
	{"uv", func() transport.Transport { return uv.New() }, "127.0.0.1:0"},
	{"shm", func() transport.Transport { return shm.New() }, ""},
}

// viable returns tr if tr works on this machine, and otherwise skips the test.
func viable(t testing.TB, tr transport.Transport) transport.Transport {
	t.Helper()
	if err := tr.Viable(); err != nil {
		t.Skip("the transport does not work here: ", err)
	}
	return tr
}

// The channel passes the conformance suite over several transports, with both ends in this process,
// which can read its own memory as it reads that of another process.
func TestParity(t *testing.T) {
	kind := delayed.New("late", 1)
	t.Cleanup(kind.Close)
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			over := viable(t, tr.mk())
			channeltest.Run(t, channeltest.Backend{
				Name:              cma.Name,
				New:               func(*testing.T) channel.Factory { return cma.New(cma.Options{}) },
				Connect:           channeltest.Over(over, tr.addr),
				Kinds:             []device.Kind{kind},
				Hold:              func(s device.Stream) func() { return s.(*delayed.Stream).Hold() },
				TrustsCompletions: true,
			})
		})
	}
}
