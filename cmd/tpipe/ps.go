package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// ps is the command ps, which shows the workers of a group with their calls, bytes and paths.
type ps struct {
	groupFlags
	timeout time.Duration
	json    bool
}

var psEntry = entry{
	name:    "ps",
	usage:   "[-rendezvous URL] [flags]",
	summary: "show the workers of a group, with their calls, bytes and paths",
	help: `Shows the members of a static or dynamic group, a line each, without joining it: the
list comes from the store, the rest from each member, over a pipe of its own.

  CALLS     calls of the member that have not ended
  SERVING   requests that the member serves
  HELD, OWNED   remote references of the member to values of other workers, and the values
            that it keeps for references; "-" if its program has no remote references
  SENT, RECEIVED   bytes of payloads and tensors since the member joined
  PATHS     its pipes to other members, by transport and channel

A member that does not answer within -timeout, because it was killed or is stopped for
example, has the reason in its line. -json has the complete incarnations, all addresses,
and each pipe.`,
	make: func() command { return &ps{} },
}

func (p *ps) flags(fs *flag.FlagSet) {
	p.storeFlags(fs)
	fs.DurationVar(&p.timeout, "timeout", 3*time.Second, "longest `time` that a member may take to answer")
	fs.BoolVar(&p.json, "json", false, "print JSON")
}

func (p *ps) run(ctx context.Context, s streams) error {
	if p.timeout <= 0 {
		return usageErrorf("-timeout %v: want more than 0", p.timeout)
	}
	c, err := p.config(s, -1, 0, false)
	if err != nil {
		return err
	}
	c.HandshakeTimeout = p.timeout
	limited, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	all, err := agent.Inspect(limited, c)
	if err != nil {
		return interrupted(ctx, p.storeError(err))
	}
	rows := make([]psRow, len(all))
	for i := range all {
		rows[i] = newPSRow(&all[i])
	}
	if p.json {
		return printJSON(s.out, rows)
	}
	return printPS(s.out, rows)
}

// psRow is one member in the JSON of the command ps.
type psRow struct {
	Name        string   `json:"name"`
	Rank        int      `json:"rank"`
	Client      bool     `json:"client,omitempty"`
	Incarnation string   `json:"incarnation"`
	Addresses   []string `json:"addresses"`
	Error       string   `json:"error,omitempty"`
	Calls       int      `json:"calls"`
	Serving     int      `json:"serving"`
	Sent        uint64   `json:"sent_bytes"`
	Received    uint64   `json:"received_bytes"`
	Pipes       []psPipe `json:"pipes"`

	// Metrics are the numbers of the extensions of the member, by name.
	Metrics map[string]int64 `json:"metrics,omitempty"`
}

// psPipe is one pipe of a member in the JSON of the command ps.
type psPipe struct {
	Worker   string `json:"worker"`
	Address  string `json:"address"`
	Path     string `json:"path"`
	Calls    int    `json:"calls"`
	Serving  int    `json:"serving"`
	Sent     uint64 `json:"sent_bytes"`
	Received uint64 `json:"received_bytes"`
}

func newPSRow(w *agent.WorkerStatus) psRow {
	r := psRow{
		Name: w.Worker.Name, Rank: w.Worker.Rank, Client: w.Client, Incarnation: w.Incarnation.String(), Addresses: w.URLs,
		Calls: w.Calls, Serving: w.Serving, Sent: w.Sent, Received: w.Received, Pipes: []psPipe{}, Metrics: w.Metrics,
	}
	if w.Err != nil {
		r.Error = oneLine(w.Err)
	}
	for _, q := range w.Pipes {
		r.Pipes = append(r.Pipes, psPipe{q.Worker.Name, q.Address, q.Path, q.Calls, q.Serving, q.Sent, q.Received})
	}
	return r
}

// printPS prints rows to w as a table. The error is that of w.
func printPS(w io.Writer, rows []psRow) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WORKER\tRANK\tINCARNATION\tADDRESS\tCALLS\tSERVING\tHELD\tOWNED\tSENT\tRECEIVED\tPATHS")
	for _, r := range rows {
		name := r.Name
		if r.Client {
			name += " (client)"
		}
		fmt.Fprintf(t, "%s\t%d\t%.8s\t%s\t", name, r.Rank, r.Incarnation, strings.Join(r.Addresses, " "))
		if r.Error != "" {
			fmt.Fprintf(t, "-\t-\t-\t-\t-\t-\t%s\n", r.Error)
			continue
		}
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%v\t%v\t%s\n", r.Calls, r.Serving,
			r.metric("user_rrefs"), r.metric("owner_rrefs"), byteSize(r.Sent), byteSize(r.Received), r.paths())
	}
	return t.Flush()
}

// metric returns the number of the extensions with that name as text, or "-" if there is none.
func (r *psRow) metric(name string) string {
	if n, ok := r.Metrics[name]; ok {
		return strconv.FormatInt(n, 10)
	}
	return "-"
}

// paths returns the paths of the pipes in r, in alphabetical order, each with the names of the
// members at the other ends, or their number if there are more than four. It returns "-" if there
// are no pipes.
func (r *psRow) paths() string {
	ends := map[string][]string{}
	for _, q := range r.Pipes {
		ends[q.Path] = append(ends[q.Path], q.Worker)
	}
	var parts []string
	for path, names := range ends {
		text := strings.Join(names, ", ")
		if len(names) > 4 {
			text = plural(len(names), "member")
		}
		parts = append(parts, path+" to "+text)
	}
	slices.Sort(parts)
	return cmp.Or(strings.Join(parts, "; "), "-")
}
