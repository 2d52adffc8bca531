package mpt_test

import (
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/simnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// partingEnds is a channel of two lanes, with paces of their own for the stream, each
// lane and the pipe's own means.
type partingEnds struct {
	one, other *end
	lanes      *simnet.Network
	id         uint64 // of the next tensor
}

// openParting returns one of which the lanes are at work. The stream and the pipe's
// own means have those delays.
func openParting(t *testing.T, control, host time.Duration, lane ...simnet.Rule) *partingEnds {
	over := func(d time.Duration) channeltest.Connect {
		return channeltest.Over(simnet.New(mem.New(nil), simnet.Delay(d)), "")
	}
	p := &partingEnds{lanes: simnet.New(mem.New(nil), lane...)}
	f := mpt.NewWithStripe(64<<10, netLanes(2, p.lanes))
	c, l := over(control)(t)
	m, n := hosts(t, over(host))
	p.one, p.other = openEnd(t, f, channel.RoleConnect, c, m), openEnd(t, f, channel.RoleListen, l, n)
	p.id = warm(t, p.one, p.other, func() { time.Sleep(time.Minute / 6) })
	return p
}

// sent moves tensors, and returns when all of them have left.
func (p *partingEnds) sent(t *testing.T, sizes ...int) (received []<-chan error, check func()) {
	var sends []<-chan error
	got := make([][]byte, len(sizes))
	for i, size := range sizes {
		got[i] = make([]byte, size)
		sends = append(sends, send(p.one, p.id, numbered(size)))
		received = append(received, recv(p.other, p.id, got[i]))
		p.id++
	}
	for _, done := range sends {
		require.NoError(t, <-done)
	}
	return received, func() {
		for i := range got {
			require.Equal(t, numbered(sizes[i]), got[i])
		}
	}
}

// What an end has sent arrives though it closes, whichever of its connections is the
// first to end, and whatever comes by the pipe's own. The peer hears of the first end,
// and begins nothing any more.
func TestCloseDeliversOnEveryLane(t *testing.T) {
	const soon, late = time.Millisecond, time.Second
	for name, c := range map[string]struct {
		control, host, first, second time.Duration
	}{
		"the stream is first": {soon, late, late, 2 * late},
		"a lane is first":     {late, late, soon, 2 * late},
		"another is first":    {late, late, 2 * late, soon},
		"the host is first":   {late, soon, late, late},
		"all at once":         {soon, soon, soon, soon},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := openParting(t, c.control, c.host,
					simnet.OnLink(0, simnet.Delay(c.first)), simnet.OnLink(1, simnet.Delay(c.second)))
				received, check := p.sent(t, 1<<20, 1000, 3<<20, 100_000)
				idle := recv(p.other, 1<<40, make([]byte, 1<<20))
				back := send(p.other, 1<<63|p.id, make([]byte, 1<<20))
				little := send(p.other, 1<<63|p.id+1, make([]byte, 1000))
				require.NoError(t, p.one.Close(errTest))
				require.ErrorIs(t, <-p.other.broken, io.EOF)
				for _, never := range []<-chan error{idle, back, little, send(p.other, 1, make([]byte, 1)), recv(p.other, 2, nil)} {
					require.ErrorIs(t, <-never, io.EOF)
				}
				for _, done := range received {
					require.NoError(t, <-done)
				}
				check()
				require.NoError(t, p.other.Close(nil))
				require.Empty(t, p.other.broken)
			})
		})
	}
}

// A lane that is cut costs what was on it; and nothing begins any more. What the other
// lanes carry both ways is over in the end, for both ends have left them.
func TestLaneIsCutInBothDirections(t *testing.T) {
	for cut := range 2 {
		t.Run(fmt.Sprint("lane ", cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := openParting(t, 0, 0, simnet.Rate(1<<20))
				var all []<-chan error
				for range 4 {
					const size = 4 << 20
					all = append(all, send(p.one, p.id, make([]byte, size)), recv(p.other, p.id, make([]byte, size)),
						send(p.other, 1<<63|p.id, make([]byte, size)), recv(p.one, 1<<63|p.id, make([]byte, size)))
					p.id++
				}
				time.Sleep(time.Second)
				p.lanes.Links()[cut].Cut()
				for _, e := range []*end{p.one, p.other} {
					require.NotErrorIs(t, <-e.broken, channel.ErrProtocol)
				}
				for _, done := range all {
					require.Error(t, <-done)
				}
			})
		})
	}
}

// The port at which lanes are awaited is closed with the stream of who should dial
// them.
func TestPartingWhileLanesOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := mpt.New(netLanes(2, newSwallowing(true, true)))
		far, control := overMem()(t)
		host, _ := hosts(t, overMem())
		e := openEnd(t, f, channel.RoleListen, control, host)
		require.NoError(t, far.WriteFrames(transport.Frame{word(1, uint16(2))}))
		_ = readFrame(t, far)
		require.Positive(t, f.Ports())
		begun := time.Now()
		require.NoError(t, far.Close())
		require.ErrorIs(t, <-e.broken, io.EOF)
		synctest.Wait()
		require.Zero(t, f.Ports())
		require.Zero(t, time.Since(begun))
	})
}
