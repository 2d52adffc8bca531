package samehost_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// newContext returns a context with o, the transport uv and the channels cma, from f, and basic, of
// which cma has the higher priority. Parent and child both use it.
func newContext(o pipe.Options, f *cma.Factory) (*pipe.Context, error) {
	o.Transports = []pipe.TransportEntry{{Name: "uv", Transport: uv.New()}}
	o.Channels = []pipe.ChannelEntry{
		{Name: cma.Name, Priority: 1200, Factory: f},
		{Name: basic.Name, Priority: 1000, Factory: basic.New()},
	}
	return pipe.New(o)
}

// routeChild is the first argument of a child that uses one of routes.
const routeChild = "on"

// runChild is the main function of a child: it applies a restriction to its process, opens a pipe
// to the parent and runs a role on it. childArgs are the dialect, the address to dial or "listen",
// a key of restrictions, and a key of roles. With the prefix "late-" the restriction is applied
// after the channel cma has checked whether it works.
func runChild(childArgs string) error {
	if on, ok := strings.CutPrefix(childArgs, routeChild+" "); ok {
		return runRouteChild(strings.Split(on, " "))
	}
	args := strings.Split(childArgs, " ")
	dialect, url, restriction, role := args[0], args[1], args[2], args[3]
	f := cma.New(cma.Options{})
	if name, late := strings.CutPrefix(restriction, "late-"); late {
		if err := f.Viable(); err != nil {
			return err
		}
		restriction = name
	}
	if err := restrictions[restriction](); err != nil {
		return err
	}
	c, err := newContext(pipe.Options{Name: "child", Dialect: pipe.Dialect(dialect)}, f)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := connectParent(c, url)
	if err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	}
	fmt.Printf("%q\n", p.Plan().String())
	err = roles[role](p)
	if errors.Is(err, pipe.ErrPeerClosed) || errors.Is(err, pipe.ErrPeerLost) {
		return nil // the parent ended the pipe
	}
	return err
}

// connectParent opens the child's pipe to the parent: it dials url or, if url is "listen", listens,
// prints its address and accepts a pipe.
func connectParent(c *pipe.Context, url string) (*pipe.Pipe, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if url != "listen" {
		return c.Dial(ctx, url)
	}
	l, err := c.Listen(ctx, "uv://127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	fmt.Println(l.URLs()[0])
	return l.Accept(ctx)
}

// roles are the functions that a child calls with its pipe.
var roles = map[string]func(p *pipe.Pipe) error{
	"echo":   echo,
	"source": source,
	"sink":   sink,
	"idle":   func(*pipe.Pipe) error { _, err := os.Stdin.Read(make([]byte, 1)); return err },

	"send":              sendFrom(unix.PROT_READ | unix.PROT_WRITE),
	"send-unreadable":   sendFrom(unix.PROT_NONE),
	"read-after-EPERM":  readAfterFilter(unix.EPERM),
	"read-after-ENOSYS": readAfterFilter(unix.ENOSYS),
	"read-after-ENOMEM": readAfterFilter(unix.ENOMEM),
}

// echo sends back the tensors of each message, without metadata and payloads, until Next, Read or
// Write fails, and returns that error. It skips messages that the sender aborts.
func echo(p *pipe.Pipe) error {
	for {
		in, err := p.Next(context.Background())
		if err != nil {
			return err
		}
		a := pipe.NewAllocation(in.Descriptor())
		if err := in.Read(context.Background(), a); errors.Is(err, pipe.ErrAborted) {
			continue
		} else if err != nil {
			return err
		}
		m := &pipe.Message{}
		for _, b := range a.Tensors {
			m.Tensors = append(m.Tensors, pipe.Tensor{Buffer: b})
		}
		if err := p.Write(context.Background(), m); err != nil {
			return err
		}
	}
}

// hugeSize is the size of a tensor that takes some time to copy.
const hugeSize = 32 << 20

// source sends messages with one huge tensor until Write fails, and returns the error.
func source(p *pipe.Pipe) error {
	m := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(make([]byte, hugeSize))}}}
	for {
		if err := p.Write(context.Background(), m); err != nil {
			return err
		}
	}
}

// sink reads messages, all into the same memory, until Next or Read fails, and returns the error.
// All messages must have parts of equal sizes.
func sink(p *pipe.Pipe) error {
	var a pipe.Allocation
	for {
		in, err := p.Next(context.Background())
		if err != nil {
			return err
		}
		if a.Tensors == nil {
			a = pipe.NewAllocation(in.Descriptor())
		}
		if err := in.Read(context.Background(), a); err != nil {
			return err
		}
	}
}
