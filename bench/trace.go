package bench

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Trace collects the events of the pipes that Go measures, at both ends. The zero Trace is empty. Its
// memory grows with the number of messages, up to maxTraceEvents at each end of a measurement.
type Trace struct {
	mu     sync.Mutex
	events []traceEvent
	ends   []*traceEnd // of the measurements of this process
}

// maxTraceEvents bounds the events that are collected at one end of a measurement.
const maxTraceEvents = 1 << 20

// traceEnd adds the events of one end of a measurement to a Trace, up to a limit. An event in the trace
// has the number of further ones.
type traceEnd struct {
	trace *Trace
	name  string // "client" or "server"
	limit int

	// trace.mu guards the fields below.
	added   int
	leftOut int
	first   traceEvent // the first event that was left out, if any was
}

// traceEvent is an event of a pipe, in the form in which the server's process sends it.
type traceEvent struct {
	Name     string         `json:"name"`
	PID      int            `json:"pid"`
	End      string         `json:"end"` // "client" or "server"
	Pipe     uint64         `json:"pipe"`
	Track    string         `json:"track"` // "" for an event without a duration
	Start    int64          `json:"start"` // in nanoseconds since 1970, by the wall clock
	Duration time.Duration  `json:"duration"`
	Args     map[string]any `json:"args,omitempty"`
}

// newEnd registers one end of a measurement with t and returns it. name is "client" or "server".
// The end adds at most limit events to t.
func (t *Trace) newEnd(name string, limit int) *traceEnd {
	end := &traceEnd{trace: t, name: name, limit: limit}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ends = append(t.ends, end)
	return end
}

// add appends e, an event of the pipe id that began at start, to the trace. If this end has added
// t.limit events already, add only counts e as left out. It sets the fields of e for the process,
// the end, the pipe and the start. The trace keeps e.Args.
func (t *traceEnd) add(id pipe.PipeID, start time.Time, e traceEvent) {
	e.PID, e.End, e.Pipe, e.Start = os.Getpid(), t.name, id.Number, start.UnixNano()
	t.trace.mu.Lock()
	defer t.trace.mu.Unlock()
	if t.added < t.limit {
		t.added++
		t.trace.events = append(t.trace.events, e)
		return
	}
	if t.leftOut == 0 {
		t.first = e
	}
	t.leftOut++
}

// merge appends events, the snapshot of another process's trace, to t without a limit. t keeps
// their Args.
func (t *Trace) merge(events []traceEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, events...)
}

// snapshot returns a copy of the events so far, in the order in which they were added. For each end
// that left events out it appends an event with their number, at the time of the first one. The
// Args are shared with t.
func (t *Trace) snapshot() []traceEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	events := slices.Clone(t.events)
	for _, end := range t.ends {
		if end.leftOut > 0 {
			e := end.first
			events = append(events, traceEvent{
				Name: fmt.Sprintf("%d events left out", end.leftOut), PID: e.PID, End: e.End, Pipe: e.Pipe, Start: e.Start,
			})
		}
	}
	return events
}

// of returns the functions for pipe.Options.Events that add events of pipes to t, up to
// maxTraceEvents. name is the end of the measurement, "client" or "server". If t is nil, of returns
// nil.
func (t *Trace) of(name string) *pipe.Events {
	if t == nil {
		return nil
	}
	end := t.newEnd(name, maxTraceEvents)
	message := func(name, track string, id pipe.PipeID, start time.Time, d time.Duration, metadata, bytes int, err error) {
		args := map[string]any{"bytes": bytes, "metadata_bytes": metadata}
		if err != nil {
			args["error"] = err.Error()
		}
		end.add(id, start, traceEvent{Name: name, Track: track, Duration: d, Args: args})
	}
	return &pipe.Events{
		Opened: func(i pipe.OpenedInfo) {
			end.add(i.Pipe, time.Now(), traceEvent{Name: "opened", Args: map[string]any{"peer": i.Pipe.Peer, "plan": i.Plan}})
		},
		CandidateRejected: func(i pipe.RejectedInfo) {
			end.add(i.Pipe, time.Now(), traceEvent{Name: "rejected", Args: map[string]any{"candidate": i.Candidate}})
		},
		MessageWritten: func(i pipe.WrittenInfo) {
			message("write", "writes", i.Pipe, i.Start, i.Duration, i.MetadataBytes, i.Bytes, i.Err)
		},
		MessageRead: func(i pipe.ReadInfo) {
			message("read", "reads", i.Pipe, i.Start, i.Duration, i.MetadataBytes, i.Bytes, i.Err)
		},
		WriterBlocked: func(i pipe.BlockedInfo) {
			args := map[string]any{"budget": i.Budget, "bytes": i.Bytes, "duration_us": micros(i.Duration), "acquired": i.Acquired}
			end.add(i.Pipe, i.Start, traceEvent{Name: "blocked", Args: args})
		},
		PeerLost: func(i pipe.PeerLostInfo) {
			end.add(i.Pipe, time.Now(), traceEvent{Name: "peer lost", Args: map[string]any{"error": i.Err.Error()}})
		},
		Closed: func(i pipe.ClosedInfo) {
			end.add(i.Pipe, time.Now(), traceEvent{Name: "closed", Args: map[string]any{"reason": i.Err.Error()}})
		},
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// chromeEvent is an entry of Chrome's Trace Event Format. Times are in microseconds.
type chromeEvent struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"` // "X": with a duration, "i": without, "M": a name of a process or thread
	Scope string         `json:"s,omitempty"`
	Time  float64        `json:"ts"`
	Dur   float64        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

// lane is a thread of the written trace. Its events do not overlap.
type lane struct {
	tid   int
	until int64 // the end of its last event
}

// laneKey identifies the lanes for events of one track of a pipe, at one end.
type laneKey struct {
	pid   int
	end   string
	pipe  uint64
	track string
}

// WriteTo writes all events as an array in Chrome's Trace Event Format, which chrome://tracing and
// Perfetto load. Times are by the wall clock, relative to the first event. Messages that overlap
// are shown in several threads. It returns the number of bytes and the first error; after an error
// the number may include bytes that were not written to w.
func (t *Trace) WriteTo(w io.Writer) (int64, error) {
	events := t.snapshot()
	slices.SortStableFunc(events, func(a, b traceEvent) int { return cmp.Compare(a.Start, b.Start) })
	out := &chromeWriter{w: bufio.NewWriter(w)}
	lanes := map[laneKey][]*lane{}
	named := map[int]bool{}
	tids := 0
	for _, e := range events {
		if !named[e.PID] {
			named[e.PID] = true
			name := "bench " + e.End
			if slices.ContainsFunc(events, func(o traceEvent) bool { return o.PID == e.PID && o.End != e.End }) {
				name = "bench, both ends"
			}
			out.write(chromeEvent{Name: "process_name", Phase: "M", PID: e.PID, Args: map[string]any{"name": name}})
		}
		key := laneKey{e.PID, e.End, e.Pipe, e.Track}
		i := slices.IndexFunc(lanes[key], func(l *lane) bool { return l.until <= e.Start })
		if i < 0 {
			i = len(lanes[key])
			tids++
			lanes[key] = append(lanes[key], &lane{tid: tids})
			name := fmt.Sprintf("%s, pipe %d", e.End, e.Pipe)
			if e.Track != "" {
				name += fmt.Sprintf(", %s %d", e.Track, i+1)
			}
			out.write(chromeEvent{Name: "thread_name", Phase: "M", PID: e.PID, TID: tids, Args: map[string]any{"name": name}})
		}
		l := lanes[key][i]
		l.until = e.Start + e.Duration.Nanoseconds()
		ts := micros(time.Duration(e.Start - events[0].Start))
		c := chromeEvent{Name: e.Name, Cat: "pipe", Phase: "X", Time: ts, Dur: micros(e.Duration), PID: e.PID, TID: l.tid, Args: e.Args}
		if e.Track == "" {
			c.Phase, c.Scope = "i", "t"
		}
		out.write(c)
	}
	return out.end()
}

// chromeWriter writes a JSON array, with one entry in each line. It keeps the first error.
type chromeWriter struct {
	w   *bufio.Writer
	n   int64
	any bool
	err error
}

func (c *chromeWriter) write(e chromeEvent) {
	text, err := json.Marshal(e)
	c.err = cmp.Or(c.err, err)
	separator := ",\n"
	if !c.any {
		c.any, separator = true, "[\n"
	}
	c.print(separator)
	c.print(string(text))
}

func (c *chromeWriter) print(text string) {
	n, err := c.w.WriteString(text)
	c.n += int64(n)
	c.err = cmp.Or(c.err, err)
}

func (c *chromeWriter) end() (int64, error) {
	if !c.any {
		c.print("[")
	}
	c.print("\n]\n")
	return c.n, cmp.Or(c.err, c.w.Flush())
}
