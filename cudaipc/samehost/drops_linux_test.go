package samehost_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestScenarios runs each scenario in two processes.
func TestScenarios(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, s.check)
	}
}

// allCalls is more than the calls of a scenario.
const allCalls = 100

// TestDrops proves that each record and wait of an event is needed: without it a scenario gives wrong bytes.
// Calls in the table of the scenario need not.
func TestDrops(t *testing.T) {
	cusim.Library(t) // skips t if there is none
	suite := drops.Suite{Tests: "^TestScenarios$", Calls: allCalls, Equal: true}
	for _, s := range scenarios {
		suite.Sample = append(suite.Sample, s.testName())
		for call, text := range s.redundant {
			suite.Redundant = append(suite.Redundant, drops.Reason{
				Text: text, Scenario: "^" + s.testName() + "$", Call: "^" + call + "$", Site: `^cudaipc.exchange < cudaipc.\(\*stagedEnd\).pull `,
			})
		}
	}
	suite.Prove(t)
}

func (s scenario) testName() string { return "TestScenarios/" + strings.ReplaceAll(s.name, " ", "_") }

// check runs s, and fails t if a process has found wrong bytes.
func (s scenario) check(t *testing.T) {
	p := s.route.start(t, nil, func(n *node) {
		s.run(n)
		n.Send(strings.Join(n.wrong, ", "))
		require.NoError(n, n.WaitFor("end"))
		os.Exit(0) // closing would be further calls
	})
	text := p.ReadLine(0) + p.ReadLine(1)
	p.SendAll("end")
	p.Wait()
	if text != "" {
		t.Fatal(drops.WrongBytes+":", text)
	}
}
