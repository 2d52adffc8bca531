package mpt_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// transports are those that the channel is tested on.
var transports = []struct {
	name string
	mk   func() transport.Transport
	addr string
}{
	{"mem", func() transport.Transport { return mem.New(nil) }, ""},
	{"uv", func() transport.Transport { return uv.New() }, "127.0.0.1:0"},
}

// names are those of listeners of the transport mem.
var names atomic.Int64

// lanes are n lanes over tr, all at one listener.
func lanes(n int, tr transport.Transport) mpt.Lanes {
	l := mpt.Lanes{Count: n, Transport: tr}
	if _, ok := tr.(*mem.Transport); ok {
		l.Addr = fmt.Sprintf("lanes%d", names.Add(1))
	}
	return l
}

// run runs the suite with 3 lanes over each transport.
func run(t *testing.T, factory func(...mpt.Lanes) *mpt.Factory) {
	kind := delayed.New("late", 1)
	t.Cleanup(kind.Close)
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			over := tr.mk()
			channeltest.Run(t, channeltest.Backend{
				Name:    mpt.UVName,
				New:     func(*testing.T) channel.Factory { return factory(lanes(3, over)) },
				Connect: channeltest.Over(tr.mk(), tr.addr),
				Kinds:   []device.Kind{kind},
				Hold:    func(s device.Stream) func() { return s.(*delayed.Stream).Hold() },
			})
		})
	}
}

func TestParity(t *testing.T) { run(t, mpt.New) }

// With slices of a few kilobytes nearly all tensors of the suite are striped.
func TestConformanceWithSmallSlices(t *testing.T) {
	run(t, func(groups ...mpt.Lanes) *mpt.Factory { return mpt.NewWithStripe(2000, groups...) })
}
