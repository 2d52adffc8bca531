package samehost_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// meshChild is the first argument of a child that is a member of a mesh.
const meshChild = "crowd"

// Lines that members print after their address: all pipes are open, or the error.
const (
	connected    = "connected"
	failedPrefix = "failed: "
)

// meshConfig describes how the members of a mesh connect.
type meshConfig struct {
	size  int           // number of members
	dials int           // concurrent dials of a member
	limit time.Duration // timeout of a handshake and of an exchange, or 0 for the defaults
}

const (
	slowHandshakes = "patient" // many members, with long timeouts
	defaultOptions = "usual"   // default options, all dials at once
)

// meshConfigs are the configurations by name. With few concurrent dials a handshake's
// timeout covers only that handshake.
var meshConfigs = map[string]meshConfig{
	slowHandshakes: {size: meshSize, dials: 4, limit: time.Minute},
	defaultOptions: {size: defaultMeshSize, dials: defaultMeshSize},
}

// TestFullMesh checks that many processes have a pipe over shared memory to each other one, all at
// the same time, and each pipe carries a tensor in both directions before the first one is closed.
func TestFullMesh(t *testing.T) { connectMesh(t, slowHandshakes) }

// TestFullMeshOnDefaultOptions checks that with default options and no limit on concurrent dials,
// the processes of a smaller mesh have a pipe over shared memory to each other one, and each pipe
// carries a tensor in both directions.
func TestFullMeshOnDefaultOptions(t *testing.T) { connectMesh(t, defaultOptions) }

func connectMesh(t *testing.T, name string) {
	size := meshConfigs[name].size
	c := newMesh(t, size, name)
	urls := c.waitForAll(shm.Name + "://")
	begin := time.Now()
	c.sendAll(func(i int) string { return strings.Join(urls[:i], " ") })
	c.waitForAll(connected)
	t.Logf("%d processes have opened %d pipes in %v", size, size*(size-1)/2, time.Since(begin))
	begin = time.Now()
	c.sendAll(func(int) string { return "close" })
	c.waitForAll(exitOK)
	t.Logf("and have closed them in %v", time.Since(begin))
}

// runMember is the main function of a process of a mesh: it listens, prints its address, reads the
// addresses to dial from its standard input, and opens a pipe to each other member. childArgs are
// its number and a key of meshConfigs.
func runMember(childArgs string) error {
	dumpStacksOnQuit()
	var number int
	var name string
	if _, err := fmt.Sscan(childArgs, &number, &name); err != nil {
		return err
	}
	with := meshConfigs[name]
	o := allOptions(fmt.Sprint("member ", number), pipe.DialectNative, shm.Name, cma.New(cma.Options{}))
	if with.limit > 0 {
		o.HandshakeTimeout, o.CloseTimeout = with.limit, 2*meshLimit // so that a Close that hangs is reported
	}
	c, err := pipe.New(o)
	if err != nil {
		return err
	}
	l, err := c.Listen(context.Background(), "shm://")
	if err != nil {
		return err
	}
	fmt.Println(l.URLs()[0])
	stdin := bufio.NewScanner(os.Stdin)
	if !stdin.Scan() {
		return stdin.Err()
	}
	m := &memberPipes{meshConfig: with, context: c, listener: l, number: number}
	if err := m.openAll(strings.Fields(stdin.Text())); err != nil {
		return err // without a graceful close, for which the others would have to wait
	}
	fmt.Println(connected)
	stdin.Scan() // until all members are connected
	return c.Close()
}

// memberPipes opens the pipes of one member.
type memberPipes struct {
	meshConfig
	context    *pipe.Context
	listener   *pipe.Listener
	number     int
	connected  sync.Map // by name
	reportOnce sync.Once
	helloCount atomic.Int32
}

// openAll opens a pipe to each other member of the mesh, and exchanges a message on each. It dials
// the addresses in lower, which are those of the members with lower numbers, and accepts the pipes
// of the other members. At the first error it stops, prints the error and returns it.
func (m *memberPipes) openAll(lower []string) error {
	limited, cancel := context.WithTimeout(context.Background(), 2*meshLimit) // in case the test does not end this process
	defer cancel()
	ctx, abort := context.WithCancelCause(limited)
	defer abort(nil)
	connect := func(p *pipe.Pipe, err error) {
		if err == nil {
			err = m.exchangeHello(ctx, p)
		}
		if err != nil {
			m.reportOnce.Do(func() { fmt.Println(failedPrefix + strings.ReplaceAll(err.Error(), "\n", " ")) })
			abort(err) // after it was printed, since other members fail because of it
		}
	}
	todo := make(chan string, len(lower))
	for _, url := range slices.Backward(lower) { // so that members do not all dial the same one first
		todo <- url
	}
	close(todo)
	var connecting sync.WaitGroup
	for range m.dials {
		connecting.Go(func() {
			for url := range todo {
				connect(m.context.Dial(ctx, url))
			}
		})
	}
	for range m.size - 1 - len(lower) {
		connecting.Go(func() { connect(m.listener.Accept(ctx)) })
	}
	connecting.Wait()
	return context.Cause(ctx)
}

// largeTensors is how many tensors of each process are large enough for a channel. If all were, the
// test would take minutes.
const largeTensors = 8

// tensorFor returns the bytes of a new tensor that repeat id: a large one for the first
// largeTensors calls, and a smaller one for further calls.
func (m *memberPipes) tensorFor(id []byte) []byte {
	size := 100_000
	if m.helloCount.Add(1) <= largeTensors {
		size = 9 << 18
	}
	return bytes.Repeat(id, size/len(id))
}

// exchangeHello sends this member's number and a tensor on p and reads those of the peer. It
// returns an error if p does not use shared memory, if the peer's tensor has other bytes than its
// number requires, or if this member has a pipe to that peer already.
func (m *memberPipes) exchangeHello(ctx context.Context, p *pipe.Pipe) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(m.limit, meshLimit))
	defer cancel()
	if got := p.Plan().Transport; got != shm.Name {
		return fmt.Errorf("the transport is %s", got)
	}
	id := fmt.Appendf(nil, "%4d", m.number)
	tensor := m.tensorFor(id)
	op := p.WriteAsync(ctx, &pipe.Message{Metadata: id, Tensors: []pipe.Tensor{{Buffer: device.Bytes(tensor)}}})
	in, err := p.Next(ctx)
	if err != nil {
		return err
	}
	a := pipe.NewAllocation(in.Descriptor())
	if err := in.Read(ctx, a); err != nil {
		return err
	}
	got, _ := a.Tensors[0].Contiguous()
	peerID := in.Descriptor().Metadata
	if !bytes.Equal(got, bytes.Repeat(peerID, len(got)/len(peerID))) {
		return fmt.Errorf("the tensor of member %s is not what it sent", peerID)
	}
	if _, before := m.connected.LoadOrStore(string(peerID), true); before {
		return fmt.Errorf("member %s is connected twice", peerID)
	}
	return op.Wait(ctx)
}

// meshSize and defaultMeshSize are numbers of processes. Under the race detector each process is
// many times slower.
var (
	meshSize        = race.Pick(64, 16)
	defaultMeshSize = race.Pick(16, 8)
)
