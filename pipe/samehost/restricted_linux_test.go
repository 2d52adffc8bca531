package samehost_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// restrictedChild is the first argument of a child that the system restricts.
const restrictedChild = "restricted"

// allOptionsContext returns a context, with this name and dialect, that prefers shared memory to
// TCP and cma, from f, to basic. If require is not empty, the policy requires the transport or
// channel of that name. Parent and child both use it.
func allOptionsContext(name string, dialect pipe.Dialect, require string, f *cma.Factory) (*pipe.Context, error) {
	return pipe.New(allOptions(name, dialect, require, f))
}

func allOptions(name string, dialect pipe.Dialect, require string, f *cma.Factory) pipe.Options {
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

// none stands for an empty argument.
const none = "-"

// restricted describes a restricted child.
type restricted struct {
	childSpec
	require  string // transport or channel that the policy of the dialling end requires
	vethPair bool   // the child is in another network namespace
	root     string // root directory in which cma reads the child's /proc and /sys, or "" for "/"
}

func (r restricted) childArgs(url string) string {
	policy := none
	if !r.listens && r.require != "" {
		policy = r.require
	}
	return strings.Join([]string{restrictedChild, string(r.dialect), url, r.restriction, policy, cmp.Or(r.role, "echo"), cmp.Or(r.root, none)}, " ")
}

// open starts a child with the restriction of r, opens a pipe to it, and returns the child and this
// end of the pipe. The child listens if r.listens is true, and dials otherwise. If r.require is
// set, the dialling end requires that transport or channel. The error is that of the dialling end,
// even if that end is the child.
func (r restricted) open(t *testing.T) (kid *child, p *pipe.Pipe, err error) {
	t.Helper()
	policy := ""
	if r.listens {
		policy = r.require
	}
	c, err := allOptionsContext("parent", r.dialect, policy, cma.New(cma.Options{}))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if r.listens {
		kid = r.startChild(t, "listen")
		p, err := c.Dial(ctx, kid.line())
		return kid, p, err
	}
	l, err := c.Listen(ctx, "uv://0.0.0.0:0", "shm://")
	require.NoError(t, err)
	host := "127.0.0.1"
	if r.vethPair {
		host = nearHost
	}
	kid = r.startChild(t, strings.Replace(l.URLs()[1], "0.0.0.0", host, 1))
	if r.require != "" {
		return kid, nil, errors.New(kid.line())
	}
	p, err = l.Accept(ctx)
	return kid, p, err
}

func (r restricted) startChild(t *testing.T, url string) *child {
	t.Helper()
	kid := startChild(t, r.childArgs(url), r.attr)
	if r.vethPair {
		createVeth(t, kid)
	}
	return kid
}

// runRestricted is the main function of a child with a restriction: it applies the restriction,
// opens a pipe to the parent and runs a role. childArgs are the dialect, the address to dial or
// "listen", the restriction, the required path, the role, and a root directory for cma. With the
// prefix "late-" the restriction is applied after shared memory and cma have checked whether they
// work.
func runRestricted(childArgs string) error {
	args := strings.Split(childArgs, " ")
	dialect, url, restriction, policy, role, root := pipe.Dialect(args[0]), args[1], args[2], args[3], args[4], args[5]
	f := cma.New(cma.Options{Root: strings.TrimPrefix(root, none)})
	if name, late := strings.CutPrefix(restriction, "late-"); late {
		if err := errors.Join(f.Viable(), shm.New().Viable()); err != nil {
			return err
		}
		restriction = name
	}
	take := restrictions[restriction]
	if restriction == "nofile" && url == "listen" {
		take = func() error { return limitDescriptors(fewDescriptors + 1) } // its listener keeps one in reserve
	}
	if err := take(); err != nil {
		return fmt.Errorf("restriction %s: %w", restriction, err)
	}
	c, err := allOptionsContext("child", dialect, policy, f)
	if err != nil {
		return err
	}
	defer c.Close()
	host := "127.0.0.1"
	if restriction == "veth" {
		host = farHost
	}
	p, err := connectOverSHM(c, url, host)
	if errors.Is(err, pipe.ErrPolicy) && policy != none {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", " ")) // expected
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Printf("%q\n", p.Plan().String())
	err = restrictedRoles[role](p)
	if errors.Is(err, pipe.ErrPeerClosed) || errors.Is(err, pipe.ErrPeerLost) {
		return nil // the parent ended the pipe
	}
	return err
}

var restrictedRoles = map[string]func(*pipe.Pipe) error{
	"echo":              echo,
	"become-undumpable": becomeUndumpable,
}

// becomeUndumpable is a role: it reads a message, makes its process undumpable, sends a large
// tensor, and then echoes messages until that fails. It returns the first error.
func becomeUndumpable(p *pipe.Pipe) error {
	in, err := p.Next(context.Background())
	if err != nil {
		return err
	}
	if err := errors.Join(in.Read(context.Background(), pipe.NewAllocation(in.Descriptor())), restrictions["dumpable"]()); err != nil {
		return err
	}
	large := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(make([]byte, hugeSize)), TargetDevice: device.CPU()}}}
	if err := p.Write(context.Background(), large); err != nil {
		return err
	}
	return echo(p)
}

// connectOverSHM opens the child's pipe to the parent: it dials url or, if url is "listen", listens
// at host over TCP and over shared memory, prints the TCP address and accepts a pipe.
func connectOverSHM(c *pipe.Context, url, host string) (*pipe.Pipe, error) {
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

// restrictions deny this process something that it needs to be read, to read, or to share memory.
var restrictions = map[string]func() error{
	"nothing":  func() error { return nil },
	"dumpable": func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) },
	"user":     becomeNobody,
	"readv":    func() error { return subprocess.DenySyscall(unix.SYS_PROCESS_VM_READV, unix.EPERM) },
	"memfd":    func() error { return subprocess.DenySyscall(unix.SYS_MEMFD_CREATE, unix.EPERM) },
	"populate": func() error {
		return subprocess.DenySyscall(unix.SYS_MADVISE, unix.EINVAL, subprocess.Argument{Number: 2, Value: unix.MADV_POPULATE_WRITE})
	},
	"pages": func() error {
		return subprocess.DenySyscall(unix.SYS_MADVISE, unix.ENOMEM, subprocess.Argument{Number: 2, Value: unix.MADV_POPULATE_WRITE})
	},
	"fsize":  func() error { return limit(unix.RLIMIT_FSIZE, 4096) },
	"nofile": func() error { return limitDescriptors(fewDescriptors) },
	"full":   func() error { return limitDescriptors(0) },
	"veth":   configureVeth,
}

func limit(resource int, soft uint64) error {
	var before unix.Rlimit
	if err := unix.Getrlimit(resource, &before); err != nil {
		return err
	}
	return unix.Setrlimit(resource, &unix.Rlimit{Cur: soft, Max: before.Max})
}

// becomeNobody makes this process run as an unprivileged user and group, and then makes it dumpable
// again, because the change of the user ends that.
func becomeNobody() error {
	if err := errors.Join(syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody)); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
}

// fewDescriptors suffice for a pipe over TCP, but not for one that changes to shared memory.
const fewDescriptors = 8

// limitDescriptors lowers this process's limit of file descriptors so that it can open only as many
// further descriptors as the argument left. It first opens and closes a listener, because the Go
// runtime then opens descriptors of its own. The error is that of the system.
func limitDescriptors(left int) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") // makes the runtime open its own descriptors
	if err != nil {
		return err
	}
	l.Close()
	end := uint64(0)
	for free := 0; ; end++ {
		if _, err := unix.FcntlInt(uintptr(end), unix.F_GETFD, 0); err == nil {
			continue
		}
		if free++; free > left {
			return limit(unix.RLIMIT_NOFILE, end)
		}
	}
}

// configureVeth blocks until the parent has created the veth pair and resumes this process, and
// then configures the pair's end in this network namespace.
func configureVeth() error {
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	for _, line := range []string{"link set lo up", "addr add " + farHost + "/30 dev " + farName, "link set " + farName + " up"} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, bytes.TrimSpace(out))
		}
	}
	return nil
}
