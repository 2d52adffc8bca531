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
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// way is how all bytes of a pipe go: one transport, to which a pipe that begins
// over TCP moves, and one channel. The channel xth has no place here: both its ends
// are in one process, of which nothing survives.
type way struct {
	name    string
	shared  bool // the transport is shm
	channel string
	factory func() channel.Factory
}

var ways = []way{
	{"uv+basic", false, basic.Name, func() channel.Factory { return basic.New() }},
	{"uv+mpt", false, mpt.UVName, func() channel.Factory { return mpt.New(mpt.Lanes{Count: 2, Transport: uv.New()}) }},
	{"uv+cma", false, cma.Name, func() channel.Factory { return cma.New(cma.Options{}) }},
	{"shm+basic", true, basic.Name, func() channel.Factory { return basic.New() }},
	{"shm+cma", true, cma.Name, func() channel.Factory { return cma.New(cma.Options{}) }},
	{"shm+mpt", true, mpt.UVName, func() channel.Factory { return mpt.New(mpt.Lanes{Count: 2, Transport: uv.New()}) }},
}

// dialects are those in which a pipe goes the way. Natively the rings carry what lanes
// would.
func (w way) dialects() []string {
	if w.shared && w.channel == mpt.UVName {
		return []string{pipe.DialectCompatible}
	}
	return []string{pipe.DialectCompatible, pipe.DialectNative}
}

func wayOf(name string) way {
	for _, w := range ways {
		if w.name == name {
			return w
		}
	}
	panic("no way is called " + name)
}

// needs skips a test of a way that the system does not allow.
func (w way) needs(t *testing.T) {
	t.Helper()
	if err := w.factory().Viable(); err != nil {
		t.Skip("the channel does not work here: ", err)
	}
}

func (w way) newContext(name, dialect string) (*pipe.Context, error) {
	o := pipe.Options{
		Name: name, Dialect: dialect,
		Transports: []pipe.TransportEntry{{Name: "uv", Transport: uv.New()}},
		Channels:   []pipe.ChannelEntry{{Name: w.channel, Priority: 1000, Factory: w.factory()}},
		Limits:     pipe.Limits{PipeBytesInFlight: 8 << 20}, // else a gigabyte waits for a peer that stands still
	}
	if w.shared {
		o.Transports = append(o.Transports, pipe.TransportEntry{Name: shm.Name, Priority: 200, Transport: shm.New()})
	}
	return pipe.New(o)
}

// listen returns a listener and the address over TCP at which every pipe begins.
func (w way) listen(ctx context.Context, c *pipe.Context) (*pipe.Listener, string, error) {
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

// requireWay checks that a pipe goes this way.
func (w way) requireWay(t *testing.T, p *pipe.Pipe) {
	t.Helper()
	got, _ := p.Plan().Channel(device.CPU(), device.CPU())
	require.Equal(t, w.channel, got, p.Plan().String())
	require.Equal(t, w.shared, p.Plan().Transport == shm.Name, p.Plan().String())
}

// errOtherBytes is the error of a conversation of which something came back changed.
var errOtherBytes = errors.New("other bytes came back")

// words of a conversation: what is small, and what is large, with a target and
// without.
func words() []*pipe.Message {
	pattern := func(seed, n int) []byte {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(i>>11 + i*7 + seed)
		}
		return p
	}
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

// ask sends a message and compares what comes back.
func ask(ctx context.Context, p *pipe.Pipe, m *pipe.Message) error {
	if err := p.Write(ctx, m); err != nil {
		return err
	}
	back, err := read(ctx, p)
	if err != nil {
		return err
	}
	if !alike(m, back) {
		return errOtherBytes
	}
	return nil
}

// alike reports whether two messages have the same bytes in the same parts.
func alike(a, b *pipe.Message) bool {
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

// read takes in a message, to be sent back as it came.
func read(ctx context.Context, p *pipe.Pipe) (*pipe.Message, error) {
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
		if d.Tensors[i].TargetDevice.IsZero() { // the other way it has one
			back.TargetDevice = device.CPU()
		}
		m.Tensors = append(m.Tensors, back)
	}
	return m, nil
}

// reflect sends back what comes until that fails.
func reflect(ctx context.Context, p *pipe.Pipe) error {
	for {
		m, err := read(ctx, p)
		if err != nil {
			return err
		}
		if err := p.Write(ctx, m); err != nil {
			return err
		}
	}
}

// playOn is the life of a child that goes a way of ways: which, in which dialect,
// to which address, or "listen", and with what to do. What it says are lines.
func playOn(part []string) error {
	w, dialect, url, role := wayOf(part[0]), part[1], part[2], part[3]
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
	if of, ok := strings.CutPrefix(role, "starve-"); ok {
		return starve(ctx, p, of)
	}
	return wayRoles[role](ctx, p)
}

// What children say.
const (
	begun   = "begun"
	address = "at "
	closing = "closing"
	steps   = "steps "
)

func (w way) open(ctx context.Context, c *pipe.Context, url string) (*pipe.Pipe, error) {
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

var wayRoles = map[string]func(context.Context, *pipe.Pipe) error{
	"converse": converse,
	"short":    runShort,
	"reflect": func(ctx context.Context, p *pipe.Pipe) error {
		if err := reflect(ctx, p); !errors.Is(err, pipe.ErrPeerClosed) {
			return err
		}
		return nil
	},
	"nap": func(context.Context, *pipe.Pipe) error {
		_, err := os.Stdin.Read(make([]byte, 1)) // ends with the test
		return err
	},
}

// converse is all that a pipe can be used for, to its orderly end.
func converse(ctx context.Context, p *pipe.Pipe) error {
	for _, m := range words() {
		if err := ask(ctx, p, m); err != nil {
			return err
		}
	}
	if err := stripe(ctx, p); err != nil {
		return err
	}
	fmt.Println(closing)
	err := p.Close()
	fmt.Print(steps, step.Passed(), "\n")
	return err
}
