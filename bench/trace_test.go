package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestTraceIsWritten tests the events that WriteTo writes: messages that overlap are in different
// threads, one after another in the same, and every event has its error, budget or reason.
func TestTraceIsWritten(t *testing.T) {
	var trace Trace
	events := trace.of("client")
	id := pipe.PipeID{Number: 3, Peer: "peer"}
	start := time.Now().Add(-time.Minute) // before all other events
	failure := errors.New("failure")
	write := func(at, d time.Duration, err error) {
		events.MessageWritten(pipe.WrittenInfo{Pipe: id, Bytes: 8, MetadataBytes: 2, Start: start.Add(at), Duration: d, Err: err})
	}
	write(10*time.Microsecond, 20*time.Microsecond, nil)
	write(15*time.Microsecond, 20*time.Microsecond, failure)
	write(30*time.Microsecond, 1500*time.Nanosecond, nil)
	events.MessageRead(pipe.ReadInfo{Pipe: id, Bytes: 9, Start: start, Duration: time.Microsecond})
	events.WriterBlocked(pipe.BlockedInfo{Pipe: id, Budget: pipe.BudgetPipe, Bytes: 7, Start: start, Duration: time.Millisecond})
	events.PeerLost(pipe.PeerLostInfo{Pipe: id, Err: failure})
	events.Closed(pipe.ClosedInfo{Pipe: id, Err: failure})
	events.CandidateRejected(pipe.RejectedInfo{Pipe: id, Candidate: pipe.Refusal{Kind: pipe.CandidateChannel, Name: "cma", Reason: "why"}})

	var text bytes.Buffer
	n, err := trace.WriteTo(&text)
	require.NoError(t, err)
	require.EqualValues(t, text.Len(), n)
	var all []chromeEvent
	require.NoError(t, json.Unmarshal(text.Bytes(), &all))
	byName := map[string][]chromeEvent{}
	for _, e := range all {
		byName[e.Name] = append(byName[e.Name], e)
	}
	writes := byName["write"]
	require.Len(t, writes, 3)
	require.Equal(t, []float64{10, 15, 30}, []float64{writes[0].Time, writes[1].Time, writes[2].Time})
	require.Equal(t, []float64{20, 20, 1.5}, []float64{writes[0].Dur, writes[1].Dur, writes[2].Dur})
	require.NotEqual(t, writes[0].TID, writes[1].TID)
	require.Equal(t, writes[0].TID, writes[2].TID)
	require.Equal(t, "failure", writes[1].Args["error"])
	require.NotContains(t, writes[0].Args, "error")
	require.Equal(t, 8.0, writes[0].Args["bytes"])
	require.Equal(t, "PipeBytesInFlight", byName["blocked"][0].Args["budget"])
	require.Equal(t, 1000.0, byName["blocked"][0].Args["duration_us"])
	require.Equal(t, "failure", byName["peer lost"][0].Args["error"])
	require.Equal(t, "failure", byName["closed"][0].Args["reason"])
	require.Contains(t, byName["rejected"][0].Args["candidate"], "reason")
	for _, name := range []string{"blocked", "peer lost", "closed", "rejected"} {
		require.Equal(t, []string{"i", "t"}, []string{byName[name][0].Phase, byName[name][0].Scope})
	}
}

// TestTraceLeavesEventsOut tests that each end of each measurement has a limit of its own for
// events, and that the snapshot has one event with the number of those left out.
func TestTraceLeavesEventsOut(t *testing.T) {
	var server, trace Trace
	start := time.Now()
	at := func(i int) time.Time { return start.Add(time.Duration(i) * time.Microsecond) }
	fill := func(end *traceEnd, number uint64, events int) {
		for i := range events {
			end.add(pipe.PipeID{Number: number}, at(i), traceEvent{Name: "read", Track: "reads", Duration: time.Nanosecond})
		}
	}
	fill(server.newEnd("server", 4), 1, 7)
	trace.merge(server.snapshot())
	fill(trace.newEnd("client", 3), 2, 5) // after more events of the server
	fill(trace.newEnd("client", 3), 3, 3)
	fill(trace.newEnd("client", 3), 4, 4)

	kept := map[uint64]int{}
	notices := map[uint64]traceEvent{}
	for _, e := range trace.snapshot() {
		if e.Track != "" {
			kept[e.Pipe]++
			continue
		}
		require.NotContains(t, notices, e.Pipe)
		notices[e.Pipe] = e
	}
	require.Equal(t, map[uint64]int{1: 4, 2: 3, 3: 3, 4: 3}, kept)
	notice := func(end string, number uint64, i, n int) traceEvent {
		return traceEvent{Name: fmt.Sprintf("%d events left out", n), PID: os.Getpid(), End: end, Pipe: number, Start: at(i).UnixNano()}
	}
	require.Equal(t, map[uint64]traceEvent{
		1: notice("server", 1, 4, 3), 2: notice("client", 2, 3, 2), 4: notice("client", 4, 3, 1),
	}, notices)

	var text bytes.Buffer
	_, err := trace.WriteTo(&text)
	require.NoError(t, err)
	var all []chromeEvent
	require.NoError(t, json.Unmarshal(text.Bytes(), &all))
	i := slices.IndexFunc(all, func(e chromeEvent) bool { return e.Name == "2 events left out" })
	require.Positive(t, i)
	require.Equal(t, []any{"i", 3.0}, []any{all[i].Phase, all[i].Time})
}

// TestIdleIgnoresTrace tests that Idle succeeds if Go.Trace is set, and adds no events to the
// trace.
func TestIdleIgnoresTrace(t *testing.T) {
	trace := &Trace{}
	_, err := Go{Child: child(t), Trace: trace}.Idle(t.Context(), uvBasic(pipe.DialectNative), 1, time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, trace.snapshot())
}

// TestTraceIsEmpty tests that WriteTo writes an empty array for a trace without events, and that a
// nil trace provides no functions for events.
func TestTraceIsEmpty(t *testing.T) {
	var text bytes.Buffer
	_, err := new(Trace).WriteTo(&text)
	require.NoError(t, err)
	require.JSONEq(t, "[]", text.String())
	require.Nil(t, (*Trace)(nil).of("client"))
}

// TestTraceOfMeasurement tests that a trace has the events of both ends of a measurement, in one
// process and in two.
func TestTraceOfMeasurement(t *testing.T) {
	for name, oneProcess := range map[string]bool{"two processes": false, "one process": true} {
		t.Run(name, func(t *testing.T) {
			if oneProcess && runtime.GOOS != "linux" {
				t.Skip("channel xth is for Linux")
			}
			s := small(100_000, true)
			if s.OneProcess = oneProcess; oneProcess {
				s.Channels = []string{"xth"}
			}
			trace := &Trace{}
			_, err := Go{Child: child(t), Trace: trace}.Measure(t.Context(), s)
			require.NoError(t, err)
			count := map[string]int{}
			for _, e := range trace.snapshot() {
				count[e.End+" "+e.Name]++
			}
			require.Equal(t, []int{1, 1, 1, 1}, []int{count["client opened"], count["client closed"], count["server opened"], count["server closed"]})
			require.GreaterOrEqual(t, count["client write"], s.RoundTrips+s.ColdTrips+s.OneWay)
			require.Equal(t, count["client write"], count["server read"])
			require.Equal(t, count["client read"], count["server write"])
		})
	}
}
