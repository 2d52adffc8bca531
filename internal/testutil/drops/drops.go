// Package drops proves that tests on the simulated CUDA driver need each record and wait of an event: it
// runs a test once for each of these calls, without that call, and the test must then see wrong bytes.
//
//	func TestDrops(t *testing.T) {
//		drops.Suite{Tests: "^TestParity$", Sample: []string{"TestParity/one"}}.Prove(t)
//	}
//
// Each run is a process of its own, which executes the test binary again for one scenario. By default a
// few calls of the scenarios in Suite.Sample are dropped. With TENSORPIPE_DROPS=all at most [Most] calls of
// each scenario are, which takes long; another value is a pattern for the names of the scenarios:
//
//	TENSORPIPE_DROPS=all go test -timeout 2h -v -run TestDrops ./cudaipc/... ./agent ./rref ./autograd/dist
package drops

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

// WrongBytes is in the output of a test that has found other bytes than it wants.
const WrongBytes = "wrong bytes"

// Most is how many calls of a scenario are dropped with TENSORPIPE_DROPS=all, at most. They are spread evenly
// over all its calls.
const Most = 8

// allVar is the environment variable that selects scenarios: all, or those whose names match a pattern.
const allVar = "TENSORPIPE_DROPS"

// Suite is tests of the package that calls Prove.
type Suite struct {
	// Tests is a pattern for the option -test.run. The scenarios are the tests and subtests of them
	// that have no subtests.
	Tests string

	// Skip reports whether a scenario, given by its name, is omitted. It may be nil.
	Skip func(scenario string) bool

	// Sample has the names of the scenarios that are run by default, and Calls how many calls of each are
	// dropped, at most. Prove skips the test by default if Sample is nil.
	Sample []string
	Calls  int

	// Equal makes Prove fail t if two runs of a scenario without a drop make different calls.
	Equal bool

	// Redundant has the reasons why bytes are right without a call.
	Redundant []Reason
}

// Reason is why bytes are right without some calls.
type Reason struct {
	Text string

	// Patterns that match the calls, by the name of the scenario, the name in the trace, such as
	// "worker0 record s2 5", and the functions that make the call, see [WithSites]. Call may be "", which
	// matches all.
	Scenario, Call, Site string
}

// matches reports whether r is a reason for a call.
func (r Reason) matches(scenario, call, site string) bool {
	return matches(r.Scenario, scenario) && matches(r.Call, call) && matches(r.Site, site)
}

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }

// Count counts calls that were dropped, by the outcome.
type Count struct {
	Scenarios, Calls int // of the scenarios, whether dropped or not
	Tried            int
	Caught           int // wrong bytes
	Otherwise        int // another failure
	Redundant        int // right bytes
	Unexplained      int // of Redundant, without a reason
	NotMade          int // that a run did not make; not in Tried
}

func (c *Count) add(more Count) {
	c.Scenarios += more.Scenarios
	c.Calls += more.Calls
	c.Tried += more.Tried
	c.Caught += more.Caught
	c.Otherwise += more.Otherwise
	c.Redundant += more.Redundant
	c.Unexplained += more.Unexplained
	c.NotMade += more.NotMade
}

// few is a number of calls of which a tenth is not representative.
const few = 20

// proves reports whether calls were dropped and no more than a tenth of them is redundant, or half of few: which
// calls a scenario makes differs from run to run.
func (c *Count) proves() bool {
	most := c.Tried / 10
	if c.Tried < few {
		most = c.Tried / 2
	}
	return c.Tried > 0 && c.Redundant <= most
}

// String returns the numbers as a line.
func (c Count) String() string {
	return fmt.Sprintf("%d scenarios, %d calls, tried %d, caught %d, otherwise %d, redundant %d (%d without a reason), not made %d",
		c.Scenarios, c.Calls, c.Tried, c.Caught, c.Otherwise, c.Redundant, c.Unexplained, c.NotMade)
}

// Prove drops calls of the scenarios of s, and logs the numbers. It fails t if a scenario fails without a
// drop, if a call is redundant without a reason, if a reason is not that of some scenarios and call sites, or if
// too many of the calls are redundant (Count.proves). With TENSORPIPE_DROPS=all
// it also logs the reasons that no call had: the calls that are dropped differ from run to run.
func (s Suite) Prove(t *testing.T) {
	short.Skip(t, "runs tests many times, each without one call")
	for _, r := range s.Redundant {
		if r.Text == "" || r.Scenario == "" || r.Site == "" {
			t.Fatalf("the reason %q has no text, no scenarios or no call sites", r.Text)
		}
	}
	var total Count
	used := make([]bool, len(s.Redundant))
	names, most := s.Sample, race.Pick(s.Calls, s.Calls/4+1)
	if chosen := os.Getenv(allVar); chosen != "" {
		names, most = s.scenarios(t), max(Most, s.Calls)
		if chosen != "all" {
			names = slices.DeleteFunc(names, func(name string) bool { return !matches(chosen, name) })
		}
	}
	if os.Getenv(allVar) != "" && len(names) == 0 {
		t.Fatal("no scenario matches " + allVar)
	}
	if len(names) == 0 {
		t.Skip("left out without " + allVar + "=all")
	}
	for _, name := range names {
		total.add(s.prove(t, name, most, used))
	}
	t.Logf("all: %v", total)
	for _, text := range s.unused(used) {
		if os.Getenv(allVar) == "all" {
			t.Log("no call had the reason:", text)
		}
	}
	if total.Unexplained > 0 {
		t.Error("the bytes are right without some calls")
	}
	if !total.proves() {
		t.Error("too many of the calls are redundant")
	}
}

// scenarios returns the names of all scenarios of s.
func (s Suite) scenarios(t *testing.T) (names []string) {
	t.Helper()
	r := begin(t, s.Tests, map[string]string{"CUSIM_TRACE": "", "GOGC": "100"})() // see Running
	if r.failed {
		t.Fatal("the tests fail:", tail(r.output))
	}
	for _, line := range strings.Split(r.output, "\n") {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- PASS: ")
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, " ")
		if s.Skip == nil || !s.Skip(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(name string) bool {
		return slices.ContainsFunc(names, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
}

// unused returns the texts of the reasons that are not used.
func (s Suite) unused(used []bool) (texts []string) {
	for i, r := range s.Redundant {
		if !used[i] {
			texts = append(texts, r.Text)
		}
	}
	return texts
}

// prove drops at most most calls of a scenario, and sets used for the reasons of those that are redundant.
func (s Suite) prove(t *testing.T, name string, most int, used []bool) (c Count) {
	t.Helper()
	calls, equal := traced(t, name)
	if len(calls) == 0 {
		return c
	}
	c.Scenarios, c.Calls = 1, len(calls)
	chosen := spread(calls, most)
	left, sites := chosen, map[string]string{}
	for try := range delays {
		if try > 0 && (len(left) == 0 || !passes(t, name, try)) {
			break
		}
		left = c.drop(t, name, left, try, sites)
	}
	for _, call := range left {
		i := slices.IndexFunc(s.Redundant, func(r Reason) bool { return r.matches(name, call, sites[call]) })
		text := "no reason"
		if c.Redundant++; i < 0 {
			c.Unexplained++
		} else {
			text, used[i] = s.Redundant[i].Text, true
		}
		t.Logf("%s: right bytes without %q of %s: %s", name, call, sites[call], text)
	}
	c.Tried = c.Caught + c.Otherwise + c.Redundant
	note := ""
	if !equal {
		note = ", only those of two runs"
	}
	if !equal && s.Equal {
		t.Error("two runs made different calls:", name)
	}
	t.Logf("%s: %v%s", name, c, note)
	return c
}

// spread returns n of calls, or all if there are not more, evenly spread.
func spread(calls []string, n int) (out []string) {
	if len(calls) <= n {
		return calls
	}
	for i := range n {
		out = append(out, calls[i*len(calls)/n])
	}
	return out
}
