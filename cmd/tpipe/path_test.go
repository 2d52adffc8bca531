package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
)

// fakeEntry is a transport or channel of a test.
type fakeEntry struct {
	name   string
	broken error
}

func chooseTools(l nameList) ([]fakeEntry, error) {
	tools := []fakeEntry{{"good", nil}, {"fine", nil}, {"bad", errBroken}}
	name := func(t fakeEntry) string { return t.name }
	chosen, err := choose("channel", l, tools, name)
	if err != nil {
		return nil, err
	}
	return chosen, checkViable("channel", l, chosen, name, func(t fakeEntry) error { return t.broken })
}

var errBroken = errors.New("no such system call")

func TestChoose(t *testing.T) {
	for text, want := range map[string][]fakeEntry{
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

// TestChooseWhatDoesNotWork checks that an entry that does not work is an error if the user has
// named it, and is kept if it is selected by default.
func TestChooseWhatDoesNotWork(t *testing.T) {
	_, err := chooseTools(nameList{[]string{"good", "bad"}, true})
	require.EqualError(t, err, "-channel: bad does not work on this machine: no such system call")
	require.ErrorIs(t, err, errBroken)
	require.Equal(t, exitFailed, exitCode(err))

	got, err := chooseTools(nameList{names: []string{"good", "bad"}})
	require.NoError(t, err)
	require.Equal(t, []fakeEntry{{"good", nil}, {"bad", errBroken}}, got)

	_, err = chooseTools(nameList{[]string{"ugly", "bad"}, true})
	require.EqualError(t, err, `-channel: there is no channel "ugly", only good, fine, bad`)
	require.Equal(t, exitUsage, exitCode(err))
}

// TestCatalogHasNoDoubles checks that no two transports and no two channels of the catalog share a
// name or a priority, and that it has all channels of the default profile.
func TestCatalogHasNoDoubles(t *testing.T) {
	p := catalog(3)
	seen := map[any]bool{}
	for _, e := range p.Transports {
		require.False(t, seen[e.Name] || seen[e.Priority], e.Name)
		seen[e.Name], seen[e.Priority] = true, true
	}
	clear(seen)
	for _, e := range p.Channels {
		require.False(t, seen[e.Name] || seen[e.Priority], e.Name)
		seen[e.Name], seen[e.Priority] = true, true
	}
	for _, name := range channelNames(tensorpipe.DefaultProfile()) {
		require.Contains(t, channelNames(p), name)
	}
}

// TestEchoAndPingAgreeOnLanes checks that the channel mpt_uv is used only if both ends have it with
// the same number of lanes, and that otherwise they use the channel basic.
func TestEchoAndPingAgreeOnLanes(t *testing.T) {
	_, url := startEcho(t, "-channel", "mpt_uv,basic", "-lanes", "3")
	for flags, want := range map[string]string{
		"-channel mpt_uv -lanes 3":              `cpu:0 to cpu:0 +mpt_uv`,
		"-channel basic,mpt_uv -lanes 4":        `cpu:0 to cpu:0 +basic`,
		"-channel basic,mpt_uv":                 `cpu:0 to cpu:0 +basic`,
		"-channel basic":                        `cpu:0 to cpu:0 +basic`,
		"-channel cma,mpt_uv,basic -lanes 3 -v": "not channel cma",
	} {
		for _, dialect := range []string{"native", "compatible"} {
			line := append([]string{"ping", "-to", url, "-count", "5", "-size", "3MiB", "-dialect", dialect}, strings.Fields(flags)...)
			stdout, stderr, code := tpipe(t, line...)
			require.Zero(t, code, stderr)
			require.Regexp(t, want, stdout, flags)
			require.Regexp(t, `dialect +`+dialect, stdout)
			require.Contains(t, stdout, "5 of 5 round trips")
		}
	}
}

// TestProbeOfWhatIsNamed checks that a probe lists exactly the transports and channels that its
// flags name, and all channels of the catalog without flags.
func TestProbeOfWhatIsNamed(t *testing.T) {
	stdout, stderr, code := tpipe(t, "probe", "-json", "-transport", "uv", "-channel", "mpt_uv,basic", "-lanes", "2")
	require.Zero(t, code, stderr)
	var f findings
	require.NoError(t, json.Unmarshal([]byte(stdout), &f))
	require.Equal(t, []finding{{"uv", true, "priority 0"}}, f.Transports)
	require.Equal(t, []finding{{"basic", true, "priority 1000"}, {"mpt_uv", true, "priority 1100"}}, f.Channels)

	stdout, stderr, code = tpipe(t, "probe", "-json")
	require.Zero(t, code, stderr)
	require.NoError(t, json.Unmarshal([]byte(stdout), &f))
	require.Len(t, f.Channels, len(catalog(1).Channels), "all that can be named")
}
