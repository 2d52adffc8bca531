package procgroup_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestGroup(t *testing.T) {
	group := procgroup.Start(t, 2, func(m *procgroup.Member) error {
		m.Send(fmt.Sprint(m.Name(), " of ", m.World, "\nrestarts ", m.Restarts))
		return m.WaitFor("enough")
	})
	require.Equal(t, "worker0 of 2\nrestarts 0", group.ReadLine(0))
	require.Equal(t, "worker1 of 2\nrestarts 0", group.ReadLine(1))
	group.Kill(1)
	require.Error(t, group.WaitExit(1))
	group.Restart(1)
	require.Equal(t, "worker1 of 2\nrestarts 1", group.ReadLine(1))
	group.SendAll("not yet")
	group.SendAll("enough")
	group.Wait()
}

// A subtest uses the group of its test.
func TestGroupOfParent(t *testing.T) {
	group := procgroup.Start(t, 1, func(m *procgroup.Member) error {
		for range 2 {
			line, err := m.ReadLine()
			if err != nil {
				return err
			}
			m.Send(line)
		}
		return nil
	})
	for _, name := range []string{"one", "two"} {
		t.Run(name, func(t *testing.T) {
			group := group.In(t)
			group.SendAll(name)
			require.Equal(t, name, group.ReadLine(0))
		})
	}
	group.Wait()
}

// A member that was stopped reads a line that was sent to it meanwhile after Continue.
func TestStop(t *testing.T) {
	group := procgroup.Start(t, 1, func(m *procgroup.Member) error {
		m.Send("ready")
		return m.WaitFor("enough")
	})
	group.WaitFor(0, "ready")
	group.Stop(0)
	group.Send(0, "enough")
	group.Continue(0)
	group.Wait()
}

func TestFailedMembers(t *testing.T) {
	short.Skip(t, "waits until a leak is certain")
	for failure, text := range map[string]string{"error": "broken", "panic": "panic: broken\ngoroutine", "leak": "leaked: "} {
		t.Run(failure, func(t *testing.T) {
			group := procgroup.Start(t, 1, func(*procgroup.Member) error {
				switch failure {
				case "error":
					return errors.New("broken")
				case "panic":
					panic("broken")
				}
				go func() { select {} }()
				return nil
			})
			require.ErrorContains(t, group.WaitExit(0), "exit status 1, standard error:\n"+text)
		})
	}
}
