package samehost_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// pointsVar is the environment variable with the number of points at which a process is killed on each
// route, or "all".
const pointsVar = "SAMEHOST_TEST_POINTS"

// If a process is killed at a call of the driver, the other end of its pipe gets an error, has received
// no wrong bytes, keeps no more memory and descriptors, and serves the next process.
func TestKilledAtDriverCalls(t *testing.T) {
	for _, r := range race.Pick([]route{direct, staged, directOver, stagedOver}, []route{direct, staged}) {
		t.Run(r.name, func(t *testing.T) {
			p := r.start(t, nil, playUntilStopped)
			require.Equal(t, accepted, p.ReadLine(0))
			p.Send(1, "0")
			whole, err := strconv.Atoi(p.ReadLine(1))
			require.NoError(t, err)
			require.Empty(t, p.ReadLine(0))
			points := choosePoints(t, whole, race.Pick(15, 3))
			killed := 0
			for _, point := range append(points, 0) {
				p.Send(0, "again")
				p.replace()
				require.Equal(t, accepted, p.ReadLine(0))
				p.Send(1, strconv.Itoa(point))
				err := p.WaitExit(1)
				if err != nil {
					killed++
				}
				if result := p.ReadLine(0); result != "" { // killed while it closes, it has ended orderly
					require.Error(t, err, result)
				}
			}
			t.Logf("%s: %d points, killed at %d of %d", r.name, whole, killed, len(points))
			require.Greater(t, killed, len(points)/2)
			p.Send(0, "stop")
			p.finish()
		})
	}
}

// accepted is the line of the first process that has a pipe to the second one.
const accepted = "accepted"

// choosePoints returns some of the numbers from 1 to points, at equal distances.
func choosePoints(t *testing.T, points, few int) (all []int) {
	if v := os.Getenv(pointsVar); v == "all" {
		few = points
	} else if v != "" {
		var err error
		few, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	few = min(few, points)
	for i := range few {
		all = append(all, 1+i*points/few)
	}
	return all
}

// playUntilStopped is the main function of both processes. The second one plays once, and is killed at the
// call that the test chooses. The first one plays with each.
func playUntilStopped(n *node) {
	if n.Rank == 1 {
		n.playOnce()
		return
	}
	b := n.newBuffers()
	var before leakcheck.Baseline
	var held int
	for i := 0; ; i++ {
		n.Send(accepted)
		err := n.play(b)
		n.requireLost(err)
		_ = n.Close() // it has ended
		if i == 0 {
			before, held = leakcheck.Begin(), n.held()
		}
		if err != nil {
			n.Send(err.Error())
		} else {
			n.Send("")
		}
		line, err := n.ReadLine()
		require.NoError(n, err)
		if line == "stop" {
			break
		}
		n.accept()
	}
	require.Empty(n, before.Leaks())
	require.Equal(n, held, n.held())
}

// playOnce plays, closes everything, and sends the number of calls.
func (n *node) playOnce() {
	line, err := n.ReadLine()
	require.NoError(n, err)
	point, err := strconv.Atoi(line)
	require.NoError(n, err)
	before := n.control.Calls("")
	if point > 0 {
		require.NoError(n, n.control.Set("CUSIM_KILL", strconv.Itoa(before+point)))
	}
	require.NoError(n, n.play(n.newBuffers()))
	require.NoError(n, n.pipes.Close())
	n.freeHost()
	require.NoError(n, n.kind.Close())
	n.Send(fmt.Sprint(n.control.Calls("") - before))
}

// held returns the bytes of device memory.
func (n *node) held() int {
	stats, err := n.kind.Stats(gpu(0))
	require.NoError(n, err)
	return stats.Held
}

// buffers are the tensors of play, a small and a large one each way.
type buffers struct {
	stream  *cudaipc.Stream
	out, in [2]device.Buffer
}

func (n *node) newBuffers() *buffers {
	b := &buffers{stream: n.stream(gpu(0))}
	for i, size := range []int{tensorSize, 64 * tensorSize} {
		b.out[i], b.in[i] = n.alloc(size, b.stream), n.alloc(size, b.stream)
	}
	return b
}

// play sends and receives tensors, in turns, and requires that those that were received have the right
// bytes. The error is that of the pipe.
func (n *node) play(b *buffers) error {
	for round := range 2 {
		for rank := range 2 {
			v := byte(1 + 2*round + rank)
			var err error
			if n.Rank == rank {
				err = n.sendSynchronized(b, v)
			} else {
				err = n.receiveChecked(b, v)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// sendSynchronized sends memory that no work of the device changes any more: such work would end with the
// process.
func (n *node) sendSynchronized(b *buffers, v byte) error {
	n.fill(b.out[0], v)
	n.fill(b.out[1], v)
	n.with(gpu(0), func(d driver.Driver) { require.NoError(n, d.SyncStream(b.stream.Handle())) })
	return n.Write(n.Context(), message(gpu(0), b.out[:]...))
}

// receiveChecked receives what sendSynchronized has sent.
func (n *node) receiveChecked(b *buffers, v byte) error {
	in, err := n.Next(n.Context())
	if err != nil {
		return err
	}
	if err := in.Read(n.Context(), pipe.Allocation{Tensors: b.in[:]}); err != nil {
		return err
	}
	if n.route.dialect == pipe.DialectCompatible && !(n.isFilled(b.in[0], v) && n.isFilled(b.in[1], v)) {
		// The sender died before its device had copied the bytes to the outbox, maybe after it had closed the
		// pipe. On a real device the stream waits for that; the simulator ends the wait.
		_, err := n.Next(n.Context())
		require.Error(n, err)
		return err
	}
	n.requireFilled(b.in[0], v)
	n.requireFilled(b.in[1], v)
	return nil
}

// requireLost requires that err, if it is not nil, is due to the end of the peer.
func (n *node) requireLost(err error) {
	var failed *driver.CallError // of memory that is gone
	if err != nil && !errors.Is(err, pipe.ErrPeerLost) && !errors.Is(err, pipe.ErrPeerClosed) && !errors.As(err, &failed) {
		require.NoError(n, err)
	}
}
