package samehost_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

// firstDelay is how long each copy and fill takes at first, in microseconds. A drop that gives right bytes
// is tried again with a longer delay, because a loaded machine may have made up for the missing call.
const (
	firstDelay  = 8_000
	delayGrowth = 5
	delays      = 3
)

// TestDrops proves that each record and wait of an event is needed: a scenario runs once for each call
// that its two processes make, without this call, and must then give wrong bytes. Calls in the table of
// the scenario need not.
func TestDrops(t *testing.T) {
	var all dropCount
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { all.add(s.dropEach(t)) })
	}
	t.Logf("all scenarios: %v", all)
	if all.scenarios == len(scenarios) { // not with a part of them, by -run
		require.Less(t, 10*all.redundant, all.tried, "a tenth of the calls is redundant")
	}
}

// dropCount counts calls that were dropped, those whose drop gave wrong bytes, and those that are known to
// be redundant.
type dropCount struct{ scenarios, tried, caught, redundant int }

func (c *dropCount) add(more dropCount) {
	c.scenarios++
	c.tried += more.tried
	c.caught += more.caught
	c.redundant += more.redundant
}

func (c dropCount) String() string {
	return fmt.Sprintf("tried %d, caught %d, redundant %d", c.tried, c.caught, c.redundant)
}

// dropEach runs s without each of its calls, and fails t if one gives right bytes and is not in the table.
func (s scenario) dropEach(t *testing.T) (count dropCount) {
	calls := s.calls(t)
	require.Equal(t, calls, s.calls(t), "the calls of two runs")
	for call := range s.redundant {
		require.Contains(t, calls, call, "an entry of the table")
	}
	var chosen []string
	for i, call := range calls {
		if race.Includes(i, len(calls), 7) {
			chosen = append(chosen, call)
		}
	}
	left := chosen
	for delay := firstDelay; len(left) > 0 && delay <= firstDelay*delayGrowth*delayGrowth; delay *= delayGrowth {
		left = s.uncaught(t, left, delay)
		left = slices.DeleteFunc(left, func(call string) bool {
			if s.redundant[call] != "" {
				count.redundant++
			}
			return s.redundant[call] != ""
		})
	}
	require.Empty(t, left, "a scenario gives right bytes without these calls")
	count.tried = len(chosen)
	count.caught = count.tried - count.redundant
	t.Logf("%s: %v", s.name, count)
	return count
}

// calls runs s and returns the lines of the trace of both processes, sorted. The bytes must be right.
func (s scenario) calls(t *testing.T) []string {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	p := s.begin(t, firstDelay, map[string]string{"CUSIM_TRACE": trace})
	require.Empty(t, p.verdict())
	text, err := os.ReadFile(trace)
	require.NoError(t, err)
	calls := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(calls)
	return calls
}

// pairs is how many scenarios run at a time. Each is idle most of the time.
const pairs = 4

// uncaught runs s without each of calls, and returns those without which the bytes were right.
func (s scenario) uncaught(t *testing.T, calls []string, delay int) (right []string) {
	t.Helper()
	running := map[string]pair{}
	for i := range len(calls) + pairs {
		if i >= pairs && i-pairs < len(calls) {
			call := calls[i-pairs]
			if running[call].verdict() == "" {
				right = append(right, call)
			}
			delete(running, call)
		}
		if i < len(calls) {
			running[calls[i]] = s.begin(t, delay, map[string]string{"CUSIM_DROP": calls[i]})
		}
	}
	return right
}

// begin starts two processes that run s, in which each copy takes delay microseconds.
func (s scenario) begin(t *testing.T, delay int, options map[string]string) pair {
	t.Helper()
	options = maps.Clone(options)
	options["CUSIM_DELAY_US"] = fmt.Sprint(delay)
	return s.route.start(t, options, func(n *node) {
		s.run(n)
		if len(n.wrong) > 0 {
			n.Send("wrong bytes: " + strings.Join(n.wrong, ", "))
		} else {
			n.Send("")
		}
		require.NoError(n, n.WaitFor("end"))
		os.Exit(0) // closing would be further calls
	})
}

// verdict returns what both processes report about their bytes, "" if all are right, and ends them.
func (p pair) verdict() string {
	p.t.Helper()
	text := p.ReadLine(0) + p.ReadLine(1)
	p.SendAll("end")
	p.Wait()
	return text
}
