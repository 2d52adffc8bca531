package samehost_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// restrictedPart begins the part of a child to which the system grants less.
const restrictedPart = "restricted"

// everything is what both processes have: shared memory goes before TCP, and direct
// copies before a connection.
func everything(name, dialect, require string, f *cma.Factory) (*pipe.Context, error) {
	return pipe.New(everythingOptions(name, dialect, require, f))
}

func everythingOptions(name, dialect, require string, f *cma.Factory) pipe.Options {
	o := pipe.Options{
		Name: name, Dialect: dialect,
		Transports: []pipe.TransportEntry{
			{Name: "uv", Transport: uv.New()},
			{Name: shm.Name, Priority: 200, Transport: shm.New()},
		},
		Channels: []pipe.ChannelEntry{
			{Name: basic.Name, Priority: 1000, Factory: basic.New()},
			{Name: cma.Name, Priority: 1200, Factory: f},
		},
	}
	switch require {
	case shm.Name:
		o.Policy.Transports.Require = []string{require}
	case cma.Name:
		o.Policy.Channels.Require = []string{require}
	}
	return o
}

// none is a word for nothing.
const none = "-"

// restricted is how a test wants to have such a child, and what it expects.
type restricted struct {
	meeting
	require string // by the policy of the end that dials
	cable   bool   // to a network of its own
	root    string // where cma looks what the child's machine is like, if not at "/"
}

func (r restricted) part(url string) string {
	policy := none
	if !r.listens && r.require != "" {
		policy = r.require
	}
	return strings.Join([]string{restrictedPart, r.dialect, url, r.spoil, policy, cmp.Or(r.role, "echo"), cmp.Or(r.root, none)}, " ")
}

// open starts a child and opens a pipe to it. Without a pipe there is the error
// of whoever dialled.
func (r restricted) open(t *testing.T) (kid *child, p *pipe.Pipe, err error) {
	t.Helper()
	policy := ""
	if r.listens {
		policy = r.require
	}
	c, err := everything("parent", r.dialect, policy, cma.New(cma.Options{}))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if r.listens {
		kid = r.spawn(t, "listen")
		p, err := c.Dial(ctx, kid.line())
		return kid, p, err
	}
	l, err := c.Listen(ctx, "uv://0.0.0.0:0", "shm://")
	require.NoError(t, err)
	host := "127.0.0.1"
	if r.cable {
		host = nearHost
	}
	kid = r.spawn(t, strings.Replace(l.URLs()[1], "0.0.0.0", host, 1))
	if r.require != "" {
		return kid, nil, errors.New(kid.line())
	}
	p, err = l.Accept(ctx)
	return kid, p, err
}

func (r restricted) spawn(t *testing.T, url string) *child {
	t.Helper()
	kid := spawn(t, r.part(url), r.attr)
	if r.cable {
		layCable(t, kid)
	}
	return kid
}

// playRestricted is the life of such a child. It spoils something before it looks
// what works, or after, and then echoes.
func playRestricted(part string) error {
	words := strings.Split(part, " ")
	dialect, url, spoil, policy, role, root := words[0], words[1], words[2], words[3], words[4], words[5]
	f := cma.New(cma.Options{Root: strings.TrimPrefix(root, none)})
	if name, late := strings.CutPrefix(spoil, "late-"); late {
		if err := errors.Join(f.Viable(), shm.New().Viable()); err != nil {
			return err
		}
		spoil = name
	}
	take := spoilers[spoil]
	if spoil == "nofile" && url == "listen" {
		take = func() error { return limitDescriptors(few + 1) } // its listener holds one in reserve
	}
	if err := take(); err != nil {
		return fmt.Errorf("spoil %s: %w", spoil, err)
	}
	c, err := everything("child", dialect, policy, f)
	if err != nil {
		return err
	}
	defer c.Close()
	host := "127.0.0.1"
	if spoil == "cable" {
		host = farHost
	}
	p, err := meetSharing(c, url, host)
	if errors.Is(err, pipe.ErrPolicy) && policy != none {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", " ")) // as it should be
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Printf("%q\n", p.Plan().String())
	err = restrictedRoles[role](p)
	if errors.Is(err, pipe.ErrPeerClosed) || errors.Is(err, pipe.ErrPeerLost) {
		return nil // the parent has had enough
	}
	return err
}

var restrictedRoles = map[string]func(*pipe.Pipe) error{
	"echo": echo,
	"hide": hide,
}

// hide echoes small messages; before it answers the first it makes itself
// unreadable, and then it sends a large tensor first.
func hide(p *pipe.Pipe) error {
	in, err := p.Next(context.Background())
	if err != nil {
		return err
	}
	if err := errors.Join(in.Read(context.Background(), pipe.NewAllocation(in.Descriptor())), spoilers["dumpable"]()); err != nil {
		return err
	}
	large := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(make([]byte, much)), TargetDevice: device.CPU()}}}
	if err := p.Write(context.Background(), large); err != nil {
		return err
	}
	return echo(p)
}

// meetSharing dials, or listens on all there is and says where over TCP.
func meetSharing(c *pipe.Context, url, host string) (*pipe.Pipe, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if url != "listen" {
		return c.Dial(ctx, url)
	}
	l, err := c.Listen(ctx, "uv://"+host+":0", "shm://")
	if err != nil {
		return nil, err
	}
	urls := l.URLs()
	fmt.Println(urls[len(urls)-1])
	return l.Accept(ctx)
}
