package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// tool stands for a transport or channel.
type tool struct {
	name   string
	broken error
}

func chooseTools(l nameList) ([]tool, error) {
	tools := []tool{{"good", nil}, {"fine", nil}, {"bad", errBroken}}
	return choose("channel", l, tools, func(t tool) string { return t.name }, func(t tool) error { return t.broken })
}

var errBroken = errors.New("no such system call")

func TestChoose(t *testing.T) {
	for text, want := range map[string][]tool{
		"good":      {{"good", nil}},
		"fine,good": {{"good", nil}, {"fine", nil}}, // priorities decide, not the order of the list
		"fine,fine": {{"fine", nil}},
	} {
		var l nameList
		require.NoError(t, l.Set(text))
		require.Equal(t, text, l.String())
		got, err := chooseTools(l)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// Who names something that does not work is told; who names nothing gets it
// with the rest, and reads in the plan that it was not used.
func TestChooseWhatDoesNotWork(t *testing.T) {
	_, err := chooseTools(nameList{[]string{"good", "bad"}, true})
	require.EqualError(t, err, "-channel: bad does not work on this machine: no such system call")
	require.ErrorIs(t, err, errBroken)
	require.Equal(t, exitFailed, exitCode(err))

	got, err := chooseTools(nameList{names: []string{"good", "bad"}})
	require.NoError(t, err)
	require.Equal(t, []tool{{"good", nil}, {"bad", errBroken}}, got)

	_, err = chooseTools(nameList{[]string{"ugly", "bad"}, true})
	require.EqualError(t, err, `-channel: there is no channel "ugly", only good, fine, bad`)
	require.Equal(t, exitUsage, exitCode(err))
}
