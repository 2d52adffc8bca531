package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/internal/sysid"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// probe is the command probe, which lists what works on this machine, or prints the path to a peer.
type probe struct {
	offer   selectionFlags
	tls     tlsFlags
	to      string
	dialect pipe.Dialect
	json    bool
}

var probeEntry = entry{
	name:    "probe",
	usage:   "[flags]",
	summary: "list what works on this machine, with the reasons for the rest",
	help: `Lists the transports, channels and dialects that pipes can use on this machine,
with the reason if one does not work, and facts about the machine and its GPUs on which
the common paths of two processes depend.

With -to it opens a pipe to a peer that listens, an echo for example, and prints its
path: the dialect, the transport, the channel for each pair of devices and size of
tensors, and the rejected candidates with the reasons. -dialect and the flags for TLS
apply to that pipe only.`,
	make: func() command { return &probe{} },
}

func (p *probe) flags(fs *flag.FlagSet) {
	p.offer.flags(fs, catalog(torchLanes))
	fs.StringVar(&p.to, "to", "", "`address` of a peer, HOST:PORT or a URL: print the path to it")
	fs.StringVar((*string)(&p.dialect), "dialect", string(pipe.DialectAuto), "`dialect` to speak with the peer: compatible, native, or auto")
	p.tls.dialFlags(fs)
	fs.BoolVar(&p.json, "json", false, "print JSON")
}

// finding is one line of a probe: whether something works on this machine.
type finding struct {
	Name   string `json:"name"`
	Works  bool   `json:"works"`
	Detail string `json:"detail"` // the reason if it does not work, otherwise a property
}

// findings is the result of a probe.
type findings struct {
	Transports []finding `json:"transports"`
	Channels   []finding `json:"channels"`
	Dialects   []finding `json:"dialects"`
	GPUs       []finding `json:"gpus"`
	Machine    []finding `json:"machine"`
}

func (p *probe) run(ctx context.Context, s streams) error {
	if p.to != "" {
		return p.ask(ctx, s)
	}
	dialect, err := (&pathFlags{dialect: p.dialect}).chosenDialect()
	if err != nil {
		return err
	}
	offered, err := p.offer.profile()
	switch {
	case err != nil:
		return err
	case dialect != pipe.DialectAuto:
		return usageErrorf("-dialect applies to the pipe to a peer: name one with -to")
	case p.tls != (tlsFlags{}):
		return usageErrorf("the flags for TLS apply to the pipe to a peer: name one with -to")
	}
	f := look(offered)
	if p.json {
		return printJSON(s.out, f)
	}
	return f.print(s.out)
}

// look returns for each transport and channel of profile whether it works on this machine, or the
// reason why not. The result also lists the dialects, the GPUs with their channels, and the facts about
// the machine.
func look(profile tensorpipe.Profile) findings {
	var f findings
	for _, e := range profile.Transports {
		f.Transports = append(f.Transports, newFinding(e.Name, e.Transport.Viable(), "priority %d", e.Priority))
	}
	for _, e := range profile.Channels {
		f.Channels = append(f.Channels, newFinding(e.Name, e.Factory.Viable(), "priority %d", e.Priority))
	}
	f.Dialects = []finding{
		{string(pipe.DialectCompatible), true, "the protocol of TensorPipe's C++ library"},
		{string(pipe.DialectNative), true, "between two ends of this library"},
	}
	found, channels := gpus()
	f.GPUs, f.Channels = found, append(f.Channels, channels...)
	f.Machine = machine()
	return f
}

// newFinding returns a finding that name works if err is nil, with a detail formatted from format
// and args. Otherwise the finding is that name does not work, with the text of err.
func newFinding(name string, err error, format string, args ...any) finding {
	if err != nil {
		return finding{name, false, err.Error()}
	}
	return finding{name, true, fmt.Sprintf(format, args...)}
}

// machine returns the facts about this machine that decide which paths two processes have in
// common, such as its address, boot id and PID namespace. A fact that cannot be determined is
// listed with the reason.
func machine() []finding {
	address, addressErr := uv.LookupLikeNCCL("ip")
	boot, bootErr := sysid.BootID()
	pid, pidErr := sysid.NamespaceID(sysid.PID)
	pages := ""
	setting, pagesErr := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if pagesErr == nil {
		pages, pagesErr = hugePagesFrom(string(setting))
	}
	return []finding{
		{"system", true, fmt.Sprintf("%s/%s, %s, %s", runtime.GOOS, runtime.GOARCH, plural(runtime.NumCPU(), "processor"), runtime.Version())},
		newFinding("address for peers", addressErr, "%s", strings.TrimSuffix(address, ":0")),
		newFinding("IPv6 loopback", ipv6Loopback(), "[::1] can be listened on"),
		newFinding("huge pages", pagesErr, "%s", pages),
		newFinding("boot id", bootErr, "%s", boot),
		newFinding("pid namespace", pidErr, "%s", pid),
	}
}

// ipv6Loopback returns nil if this machine can listen on the IPv6 loopback address, and otherwise
// the error. It opens a listener and closes it.
func ipv6Loopback() error {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return err
	}
	return l.Close()
}

// hugePagesFrom returns a description of the active setting of transparent huge pages, or an error
// if they are off or text has no active setting. text is the content of the kernel's file
// transparent_hugepage/enabled, which lists all settings with the active one in brackets.
func hugePagesFrom(text string) (string, error) {
	_, rest, _ := strings.Cut(text, "[")
	setting, _, found := strings.Cut(rest, "]")
	switch {
	case !found || setting == "never":
		return "", errors.New("disabled in the kernel (transparent_hugepage/enabled)")
	case setting == "always":
		return "always", nil
	default:
		return setting + " (large tensors request them)", nil
	}
}

func (f findings) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, group := range []struct {
		title string
		list  []finding
	}{{"transport", f.Transports}, {"channel", f.Channels}, {"dialect", f.Dialects}, {"gpu", f.GPUs}, {"machine", f.Machine}} {
		for _, one := range group.list {
			works := "no"
			if one.Works {
				works = "yes"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", group.title, one.Name, works, one.Detail)
		}
	}
	return t.Flush()
}

// probeTimeout bounds the handshake of a probe.
const probeTimeout = 30 * time.Second

// ask opens a pipe to the peer at the URL of -to, prints the pipe's path and the rejected
// candidates to s.out, and closes the pipe. The error is a *usageError for a bad flag, that of
// dialling or of printing JSON, or errInterrupted if a signal has ended ctx.
func (p *probe) ask(ctx context.Context, s streams) error {
	tls, err := p.tls.dial()
	if err != nil {
		return err
	}
	path := pathFlags{offer: p.offer, dialect: p.dialect}
	opts, err := path.options(tls...)
	if err != nil {
		return err
	}
	opts.Name = "tpipe probe"
	opts.HandshakeTimeout = probeTimeout
	c, err := pipe.New(opts)
	if err != nil {
		return err
	}
	defer c.Close()
	conn, err := c.Dial(ctx, withScheme(uvName, p.to))
	if err != nil {
		return interrupted(ctx, flagError("to", err))
	}
	defer conn.Close() // the plan does not depend on how the peer closes
	if p.json {
		return printJSON(s.out, conn.Plan())
	}
	printPlan(s.out, conn.Plan(), true)
	return nil
}
