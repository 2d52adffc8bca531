package team_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/team"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestCrew(t *testing.T) {
	crew := team.Start(t, 2, func(m *team.Member) error {
		m.Say(fmt.Sprint(m.Name(), " of ", m.World, "\nlife ", m.Life))
		return m.Await("enough")
	})
	require.Equal(t, "worker0 of 2\nlife 0", crew.Line(0))
	require.Equal(t, "worker1 of 2\nlife 0", crew.Line(1))
	crew.Kill(1)
	require.Error(t, crew.End(1))
	crew.Restart(1)
	require.Equal(t, "worker1 of 2\nlife 1", crew.Line(1))
	crew.TellAll("not yet")
	crew.TellAll("enough")
	crew.Wait()
}

// A member that is stopped does nothing until it may go on.
func TestStop(t *testing.T) {
	crew := team.Start(t, 1, func(m *team.Member) error {
		m.Say("ready")
		return m.Await("enough")
	})
	crew.Await(0, "ready")
	crew.Stop(0)
	crew.Tell(0, "enough")
	crew.Continue(0)
	crew.Wait()
}

func TestBadEnds(t *testing.T) {
	for how, text := range map[string]string{"error": "unlucky", "panic": "panic: unlucky\ngoroutine", "leak": "left behind: "} {
		t.Run(how, func(t *testing.T) {
			crew := team.Start(t, 1, func(*team.Member) error {
				switch how {
				case "error":
					return errors.New("unlucky")
				case "panic":
					panic("unlucky")
				}
				go func() { select {} }()
				return nil
			})
			require.ErrorContains(t, crew.End(0), "exit status 1, having said:\n"+text)
		})
	}
}
