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
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// path is the transport of the channel under test, and that of its lanes.
type path struct {
	name      string
	mk, lanes func() transport.Transport
	addr      string
}

var transports = []path{
	{"mem", overNothing, overNothing, ""},
	{"uv", overTCP, overTCP, "127.0.0.1:0"},
	{"shm", func() transport.Transport { return shm.New() }, overTCP, ""},
}

func overNothing() transport.Transport { return mem.New(nil) }

func overTCP() transport.Transport { return uv.New() }

// names are the listener names of the transport mem.
var names atomic.Int64

// lanes returns a group of n lanes over tr. Over mem the group has an address that no other group
// has.
func lanes(n int, tr transport.Transport) mpt.Lanes {
	l := mpt.Lanes{Count: n, Transport: tr}
	if _, ok := tr.(*mem.Transport); ok {
		l.Addr = fmt.Sprintf("lanes%d", names.Add(1))
	}
	return l
}

// run runs the conformance suite for channels of factory with three lanes, once for each of
// transports as a subtest. It skips those that do not work on this machine.
func run(t *testing.T, transports []path, factory func(...mpt.Lanes) *mpt.Factory) {
	kind := delayed.New("late", 1)
	t.Cleanup(kind.Close)
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			over, tracks := tr.mk(), tr.lanes()
			if err := over.Viable(); err != nil {
				t.Skip("the transport does not work here: ", err)
			}
			channeltest.Run(t, channeltest.Backend{
				Name:    mpt.UVName,
				New:     func(*testing.T) channel.Factory { return factory(lanes(3, tracks)) },
				Connect: channeltest.Over(over, tr.addr),
				Kinds:   []device.Kind{kind},
				Hold:    func(s device.Stream) func() { return s.(*delayed.Stream).Hold() },
			})
		})
	}
}

// The channel passes the conformance suite over several transports. Ends wait only briefly for
// lanes after the end of the control connection, because the suite kills many ends.
func TestParity(t *testing.T) { run(t, transports, mpt.NewWithShortTimeout) }

// The channel passes the conformance suite also with slices of a few kilobytes, with which nearly
// all native tensors over sockets use lanes. Under the race detector only the transport with
// sockets is tested.
func TestConformanceWithSmallSlices(t *testing.T) {
	short.Skip(t, "the conformance suite once more")
	run(t, race.Pick(transports[:2], transports[1:2]), func(groups ...mpt.Lanes) *mpt.Factory { return mpt.NewWithStripe(2000, groups...) })
}
