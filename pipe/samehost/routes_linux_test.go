package samehost_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// route is the transport and the channel of a pipe. With shm the pipe begins over TCP and changes
// to shared memory. The channel xth is missing: both its ends are in one process.
type route struct {
	name    string
	shared  bool // the transport is shm
	channel string
	factory func() channel.Factory
}

var routes = []route{
	{"uv+basic", false, basic.Name, func() channel.Factory { return basic.New() }},
	{"uv+mpt", false, mpt.UVName, func() channel.Factory { return mpt.New(mpt.Lanes{Count: 2, Transport: uv.New()}) }},
	{"uv+cma", false, cma.Name, func() channel.Factory { return cma.New(cma.Options{}) }},
	{"shm+basic", true, basic.Name, func() channel.Factory { return basic.New() }},
	{"shm+cma", true, cma.Name, func() channel.Factory { return cma.New(cma.Options{}) }},
	{"shm+mpt", true, mpt.UVName, func() channel.Factory { return mpt.New(mpt.Lanes{Count: 2, Transport: uv.New()}) }},
}

// dialects returns the dialects in which a pipe can use the route: both, or only the compatible one
// for lanes over shared memory, which the native dialect does not use.
func (w route) dialects() []pipe.Dialect {
	if w.shared && w.channel == mpt.UVName {
		return []pipe.Dialect{pipe.DialectCompatible}
	}
	return []pipe.Dialect{pipe.DialectCompatible, pipe.DialectNative}
}

func routeOf(name string) route {
	for _, w := range routes {
		if w.name == name {
			return w
		}
	}
	panic("unknown route " + name)
}

// skipUnlessViable skips the test if the channel of the route does not work on this machine.
func (w route) skipUnlessViable(t *testing.T) {
	t.Helper()
	if err := w.factory().Viable(); err != nil {
		t.Skip("the channel does not work here: ", err)
	}
}

func (w route) newContext(name string, dialect pipe.Dialect) (*pipe.Context, error) {
	o := pipe.Options{
		Name: name, Dialect: dialect,
		Transports: []pipe.TransportEntry{{Name: "uv", Transport: uv.New()}},
		Channels:   []pipe.ChannelEntry{{Name: w.channel, Priority: 1000, Factory: w.factory()}},
		Limits:     pipe.Limits{PipeBytesInFlight: 8 << 20}, // bounds what waits for a stopped peer
	}
	if w.shared {
		o.Transports = append(o.Transports, pipe.TransportEntry{Name: shm.Name, Priority: 200, Transport: shm.New()})
	}
	return pipe.New(o)
}

// listen returns a listener of c for the route, and its TCP address, which clients dial. If the
// route uses shared memory, the listener has an address there too, to which the pipe changes.
func (w route) listen(ctx context.Context, c *pipe.Context) (*pipe.Listener, string, error) {
	at := []string{"uv://127.0.0.1:0"}
	if w.shared {
		at = append(at, "shm://")
	}
	l, err := c.Listen(ctx, at...)
	if err != nil {
		return nil, "", err
	}
	for _, url := range l.URLs() {
		if strings.HasPrefix(url, "uv://") {
			return l, url, nil
		}
	}
	return nil, "", errors.New("no address over TCP")
}

// requireRoute requires that p uses the channel of this route between host memory. It also requires
// that p uses shared memory if the route does, and TCP if not.
func (w route) requireRoute(t *testing.T, p *pipe.Pipe) {
	t.Helper()
	got, _ := p.Plan().Channel(device.CPU(), device.CPU())
	require.Equal(t, w.channel, got, p.Plan().String())
	require.Equal(t, w.shared, p.Plan().Transport == shm.Name, p.Plan().String())
}

// errOtherBytes is returned if an echo differs from the message.
var errOtherBytes = errors.New("the echo differs from the message")

// pattern returns n new bytes that depend on seed. Nothing else has the memory, and the race detector
// makes each of many million bytes slow.
//
//go:norace
func pattern(seed, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i/2_039 + i*7 + seed)
	}
	return p
}

// testMessages returns three new messages: a small one with a target device, a large one of which
// some tensors have one, and a small one without.
func testMessages() []*pipe.Message {
	tensor := func(seed, n int, target device.Device) pipe.Tensor {
		return pipe.Tensor{Buffer: device.Bytes(pattern(seed, n)), TargetDevice: target}
	}
	return []*pipe.Message{
		{Metadata: []byte("small"), Payloads: []pipe.Payload{{Data: pattern(1, 50)}}, Tensors: []pipe.Tensor{tensor(2, 1000, device.CPU())}},
		{Metadata: []byte("large"), Payloads: []pipe.Payload{{Data: pattern(3, 100_000)}}, Tensors: []pipe.Tensor{
			tensor(4, 2<<20+1, device.Device{}), tensor(5, 5<<19, device.CPU()), tensor(6, 0, device.CPU()),
		}},
		{Tensors: []pipe.Tensor{tensor(7, 5000, device.Device{})}},
	}
}

// sendAndCompare writes m to p and reads the echo, the next message of the peer. It returns the
// error of Write, Next or Read, or errOtherBytes if the echo is not equal to m.
func sendAndCompare(ctx context.Context, p *pipe.Pipe, m *pipe.Message) error {
	if err := p.Write(ctx, m); err != nil {
		return err
	}
	back, err := readMessage(ctx, p)
	if err != nil {
		return err
	}
	if !equalMessages(m, back) {
		return errOtherBytes
	}
	return nil
}

// equalMessages reports whether a and b have equal metadata and equal payloads and tensors. It does
// not compare the metadata of parts and the devices. Tensors must be contiguous host memory.
func equalMessages(a, b *pipe.Message) bool {
	if !bytes.Equal(a.Metadata, b.Metadata) || len(a.Payloads) != len(b.Payloads) || len(a.Tensors) != len(b.Tensors) {
		return false
	}
	for i := range a.Payloads {
		if !bytes.Equal(a.Payloads[i].Data, b.Payloads[i].Data) {
			return false
		}
	}
	for i := range a.Tensors {
		p, _ := a.Tensors[i].Buffer.Contiguous()
		q, _ := b.Tensors[i].Buffer.Contiguous()
		if !bytes.Equal(p, q) {
			return false
		}
	}
	return true
}

// readMessage reads the next message of p into new memory, and returns it as a message that can be
// sent back. A tensor whose device was left to this end gets the target cpu:0, any other no target,
// so that an echo exercises both. The error is that of Next or Read.
func readMessage(ctx context.Context, p *pipe.Pipe) (*pipe.Message, error) {
	in, err := p.Next(ctx)
	if err != nil {
		return nil, err
	}
	d := in.Descriptor()
	a := pipe.NewAllocation(d)
	if err := in.Read(ctx, a); err != nil {
		return nil, err
	}
	m := &pipe.Message{Metadata: bytes.Clone(d.Metadata)}
	for _, p := range a.Payloads {
		m.Payloads = append(m.Payloads, pipe.Payload{Data: p})
	}
	for i, b := range a.Tensors {
		back := pipe.Tensor{Buffer: b}
		if d.Tensors[i].TargetDevice.IsZero() { // the echo names a target, so that both forms are sent
			back.TargetDevice = device.CPU()
		}
		m.Tensors = append(m.Tensors, back)
	}
	return m, nil
}

// echoMessages sends back each message of p until Next, Read or Write fails, and returns the error.
func echoMessages(ctx context.Context, p *pipe.Pipe) error {
	for {
		m, err := readMessage(ctx, p)
		if err != nil {
			return err
		}
		if err := p.Write(ctx, m); err != nil {
			return err
		}
	}
}

// runRouteChild is the main function of a child that uses a route: it prints begun, opens a pipe to
// the parent and runs a role. childArgs are the route, the dialect, the address to dial or
// "listen", and the role: a key of routeRoles, or "restrict-" and a key of restrictions.
func runRouteChild(childArgs []string) error {
	w, dialect, url, role := routeOf(childArgs[0]), pipe.Dialect(childArgs[1]), childArgs[2], childArgs[3]
	fmt.Println(begun)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c, err := w.newContext("child", dialect)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := w.open(ctx, c, url)
	if err != nil {
		return err
	}
	if of, ok := strings.CutPrefix(role, "restrict-"); ok {
		return restrictLater(ctx, p, of)
	}
	return routeRoles[role](ctx, p)
}

// Lines, or prefixes of lines, that children print.
const (
	begun        = "begun"
	address      = "at "
	closing      = "closing"
	pointsPrefix = "steps "
)

func (w route) open(ctx context.Context, c *pipe.Context, url string) (*pipe.Pipe, error) {
	if url != "listen" {
		return c.Dial(ctx, url)
	}
	l, url, err := w.listen(ctx, c)
	if err != nil {
		return nil, err
	}
	fmt.Println(address + url)
	return l.Accept(ctx)
}

var routeRoles = map[string]func(context.Context, *pipe.Pipe) error{
	"scenario":      runScenario,
	"out-of-memory": runOutOfMemory,
	"echo": func(ctx context.Context, p *pipe.Pipe) error {
		if err := echoMessages(ctx, p); !errors.Is(err, pipe.ErrPeerClosed) {
			return err
		}
		return nil
	},
	"idle": func(context.Context, *pipe.Pipe) error {
		_, err := os.Stdin.Read(make([]byte, 1)) // until the end of the test
		return err
	},
}

// runScenario is a role: it sends messages of all kinds, compares their echoes, uses the lanes if
// there are any, and closes the pipe. It prints when it begins to close and, at the end, the number
// of failpoints that the process has passed. It returns the first error.
func runScenario(ctx context.Context, p *pipe.Pipe) error {
	for _, m := range testMessages() {
		if err := sendAndCompare(ctx, p, m); err != nil {
			return err
		}
	}
	if err := useLanes(ctx, p); err != nil {
		return err
	}
	fmt.Println(closing)
	err := p.Close()
	fmt.Print(pointsPrefix, failpoint.Count(), "\n")
	return err
}
