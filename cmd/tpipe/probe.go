package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/internal/sysid"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// probe is the command that says what works on this machine.
type probe struct {
	offer   offerFlags
	tls     tlsFlags
	to      string
	dialect string
	json    bool
}

func probeEntry() entry {
	return entry{
		name:    "probe",
		usage:   "[flags]",
		summary: "say what works on this machine, and why the rest does not",
		help: `Lists the transports, channels and dialects that pipes can use on this machine,
with the reason where one does not work, and facts about the machine that decide
which paths two processes have in common.

With -to it opens a pipe to a peer that listens, an echo for example, and prints the
path of that: the dialect, the transport, the channel for each pair of devices and
size of tensors, and what was not chosen, and why. -dialect and the flags for TLS are
about that pipe alone.`,
		make: func() command { return &probe{} },
	}
}

func (p *probe) flags(fs *flag.FlagSet) {
	p.offer.flags(fs, catalog(torchLanes))
	fs.StringVar(&p.to, "to", "", "`url` of a peer whose path is asked for")
	fs.StringVar(&p.dialect, "dialect", pipe.DialectAuto, "`dialect` to speak with it: compatible, native, or auto")
	p.tls.dialFlags(fs)
	fs.BoolVar(&p.json, "json", false, "print JSON")
}

// finding is one line of a probe: something that works or does not.
type finding struct {
	Name   string `json:"name"`
	Works  bool   `json:"works"`
	Detail string `json:"detail"` // why not, or what was found
}

// findings is the result of a probe.
type findings struct {
	Transports []finding `json:"transports"`
	Channels   []finding `json:"channels"`
	Dialects   []finding `json:"dialects"`
	Machine    []finding `json:"machine"`
}

func (p *probe) run(ctx context.Context, s streams) error {
	if p.to != "" {
		return p.ask(ctx, s)
	}
	offered, err := p.listed()
	if err != nil {
		return err
	}
	f := look(offered)
	if !p.json {
		return f.print(s.out)
	}
	enc := json.NewEncoder(s.out)
	enc.SetIndent("", "  ")
	return enc.Encode(f)
}

// listed is what to look at where no peer is asked for. Flags about the pipe to one are
// refused, because they would change nothing.
func (p *probe) listed() (tensorpipe.Profile, error) {
	dialect, err := (&pathFlags{dialect: p.dialect}).chosenDialect()
	if err != nil {
		return tensorpipe.Profile{}, err
	}
	offered, err := p.offer.profile()
	switch {
	case err != nil:
		return offered, err
	case dialect != pipe.DialectAuto:
		return offered, usageErrorf("-dialect is about the pipe to a peer: name one with -to")
	case p.tls != (tlsFlags{}):
		return offered, usageErrorf("-tls and its like are about the pipe to a peer: name one with -to")
	}
	return offered, nil
}

func look(profile tensorpipe.Profile) findings {
	var f findings
	for _, e := range profile.Transports {
		f.Transports = append(f.Transports, judge(e.Name, e.Transport.Viable(), "priority %d", e.Priority))
	}
	for _, e := range profile.Channels {
		f.Channels = append(f.Channels, judge(e.Name, e.Factory.Viable(), "priority %d", e.Priority))
	}
	f.Dialects = []finding{
		{pipe.DialectCompatible, true, "the protocol of TensorPipe's C++ library"},
		{pipe.DialectNative, true, "between two ends of this library"},
	}
	f.Machine = machine()
	return f
}

// judge is a finding about something that works unless there is an error.
func judge(name string, err error, format string, args ...any) finding {
	if err != nil {
		return finding{name, false, err.Error()}
	}
	return finding{name, true, fmt.Sprintf(format, args...)}
}

func machine() []finding {
	address, addressErr := uv.LookupLikeNCCL("ip")
	boot, bootErr := sysid.BootID()
	pid, pidErr := sysid.NamespaceID(sysid.PID)
	pages, pagesErr := hugePages()
	return []finding{
		{"system", true, fmt.Sprintf("%s/%s, %s, %s", runtime.GOOS, runtime.GOARCH, plural(runtime.NumCPU(), "processor"), runtime.Version())},
		judge("address for peers", addressErr, "%s", strings.TrimSuffix(address, ":0")),
		judge("IPv6 loopback", ipv6Loopback(), "[::1] can be listened on"),
		judge("huge pages", pagesErr, "%s", pages),
		judge("boot id", bootErr, "%s", boot),
		judge("pid namespace", pidErr, "%s", pid),
	}
}

func ipv6Loopback() error {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return err
	}
	return l.Close()
}

func hugePages() (string, error) {
	text, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil {
		return "", err
	}
	return hugePagesFrom(string(text))
}

// hugePagesFrom reads the kernel's file, which lists all settings and has the
// one in force in brackets.
func hugePagesFrom(text string) (string, error) {
	_, rest, _ := strings.Cut(text, "[")
	setting, _, found := strings.Cut(rest, "]")
	switch {
	case !found || setting == "never":
		return "", errors.New("the kernel gives none (transparent_hugepage/enabled)")
	case setting == "always":
		return "always", nil
	default:
		return setting + " (big tensors ask for them)", nil
	}
}

func (f findings) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, group := range []struct {
		title string
		list  []finding
	}{{"transport", f.Transports}, {"channel", f.Channels}, {"dialect", f.Dialects}, {"machine", f.Machine}} {
		for _, one := range group.list {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", group.title, one.Name, yesNo(one.Works), one.Detail)
		}
	}
	return t.Flush()
}

func yesNo(works bool) string {
	if works {
		return "yes"
	}
	return "no"
}
