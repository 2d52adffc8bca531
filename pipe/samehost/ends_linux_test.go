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

// newContext makes the same context in all processes: cma goes before basic.
func newContext(o pipe.Options, f *cma.Factory) (*pipe.Context, error) {
	o.Transports = []pipe.TransportEntry{{Name: "uv", Transport: uv.New()}}
	o.Channels = []pipe.ChannelEntry{
		{Name: cma.Name, Priority: 1200, Factory: f},
		{Name: basic.Name, Priority: 1000, Factory: basic.New()},
	}
	return pipe.New(o)
}

// onWay begins the part of a child that goes a way of ways.
const onWay = "on"

// play is the life of a child. Its part is a list of words: the dialect, the
// address that it dials, or "listen", what it spoils before or after it has
// looked what works, and what it does with the pipe. If it begins with onWay see
// playOn.
func play(part string) error {
	if on, ok := strings.CutPrefix(part, onWay+" "); ok {
		return playOn(strings.Split(on, " "))
	}
	words := strings.Split(part, " ")
	dialect, url, spoil, role := words[0], words[1], words[2], words[3]
	f := cma.New(cma.Options{})
	if name, late := strings.CutPrefix(spoil, "late-"); late {
		if err := f.Viable(); err != nil {
			return err
		}
		spoil = name
	}
	if err := spoilers[spoil](); err != nil {
		return err
	}
	c, err := newContext(pipe.Options{Name: "child", Dialect: dialect}, f)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := meetParent(c, url)
	if err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	}
	fmt.Printf("%q\n", p.Plan().String())
	err = roles[role](p)
	if errors.Is(err, pipe.ErrPeerClosed) || errors.Is(err, pipe.ErrPeerLost) {
		return nil // the parent has had enough
	}
	return err
}

// meetParent dials, or says where it listens and accepts.
func meetParent(c *pipe.Context, url string) (*pipe.Pipe, error) {
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

var roles = map[string]func(p *pipe.Pipe) error{
	"echo":   echo,
	"source": source,
	"sink":   sink,
	"nap":    func(*pipe.Pipe) error { _, err := os.Stdin.Read(make([]byte, 1)); return err },

	"give":            give(unix.PROT_READ | unix.PROT_WRITE),
	"give-none":       give(unix.PROT_NONE),
	"filtered-EPERM":  filtered(unix.EPERM),
	"filtered-ENOSYS": filtered(unix.ENOSYS),
	"filtered-ENOMEM": filtered(unix.ENOMEM),
}

// echo sends back what comes, but for what the sender gives up.
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

// much is the size of a tensor that takes some time to be copied.
const much = 32 << 20

// source sends tensors without end.
func source(p *pipe.Pipe) error {
	m := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(make([]byte, much))}}}
	for {
		if err := p.Write(context.Background(), m); err != nil {
			return err
		}
	}
}

// sink reads what comes.
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
