package faulty_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
)

func message(kind agent.Kind, typ, name, peer string) *agent.Message {
	return &agent.Message{Kind: kind, Type: typ, Name: name, Peer: agent.WorkerInfo{Name: peer}}
}

func one(t *testing.T, rules ...faulty.Rule) *faulty.Faulty {
	t.Helper()
	f, err := faulty.New(faulty.Options{Rules: rules, Seed: 7})
	require.NoError(t, err)
	return f
}

func TestMatch(t *testing.T) {
	call := message(agent.KindRequest, "", "pkg/example.add", "worker1")
	fork := message(agent.KindRequest, "rref.fork", "", "worker2")
	reply := message(agent.KindReply, "", "pkg/example.add", "worker1")
	for name, c := range map[string]struct {
		rule                faulty.Rule
		call, forked, reply bool
	}{
		"all requests": {faulty.Rule{}, true, true, false},
		"calls":        {faulty.Rule{Types: []string{""}}, true, false, false},
		"type":         {faulty.Rule{Types: []string{"rref.delete", "rref.fork"}}, false, true, false},
		"types":        {faulty.Rule{Types: []string{"rref.*"}}, false, true, false},
		"function":     {faulty.Rule{Func: "pkg/example.add"}, true, false, false},
		"functions":    {faulty.Rule{Func: "*.a??"}, true, false, false},
		"other":        {faulty.Rule{Func: "example.add"}, false, false, false},
		"peer":         {faulty.Rule{Peer: "worker[12]"}, true, true, false},
		"other peer":   {faulty.Rule{Peer: "worker2"}, false, true, false},
		"replies":      {faulty.Rule{Kinds: []agent.Kind{agent.KindReply}}, false, false, true},
		"both":         {faulty.Rule{Kinds: []agent.Kind{agent.KindReply, agent.KindRequest}, Peer: "worker1"}, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			c.rule.Do = faulty.Drop()
			f := one(t, c.rule)
			require.Equal(t, c.call, f.Inject(call).Drop)
			require.Equal(t, c.forked, f.Inject(fork).Drop)
			require.Equal(t, c.reply, f.Inject(reply).Drop)
		})
	}
}

func TestCounts(t *testing.T) {
	for name, c := range map[string]struct {
		rule faulty.Rule
		want string
	}{
		"all":         {faulty.Rule{}, "xxxxxxxxxx"},
		"first":       {faulty.Rule{First: 3}, "xxx......."},
		"skip":        {faulty.Rule{Skip: 4}, "....xxxxxx"},
		"every":       {faulty.Rule{Every: 3}, "x..x..x..x"},
		"skip, every": {faulty.Rule{Skip: 2, Every: 4, First: 2}, "..x...x..."},
	} {
		t.Run(name, func(t *testing.T) {
			c.rule.Do = faulty.Drop()
			f := one(t, c.rule)
			got := ""
			for range 10 {
				if f.Inject(message(agent.KindRequest, "", "f", "w")).Drop {
					got += "x"
				} else {
					got += "."
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}

// TestProbability checks that a rule with a probability applies to about that part of the messages,
// and to the same ones each time if the seed is the same.
func TestProbability(t *testing.T) {
	run := func() (taken []bool, n int) {
		f := one(t, faulty.Rule{Probability: 0.25, Do: faulty.Drop()})
		for range 1000 {
			taken = append(taken, f.Inject(message(agent.KindRequest, "", "f", "w")).Drop)
		}
		require.Equal(t, 1000, f.Counts()[0].Matched)
		return taken, f.Counts()[0].Taken
	}
	first, n := run()
	require.InDelta(t, 250, n, 60)
	again, _ := run()
	require.Equal(t, first, again)
}

func TestRulesAddUp(t *testing.T) {
	f := one(t, faulty.Rule{Do: faulty.Delay(time.Second)}, faulty.Rule{Do: faulty.Delay(time.Minute)}, faulty.Rule{Do: faulty.Duplicate()})
	require.Equal(t, agent.Fault{Delay: time.Minute + time.Second, Extra: 1}, f.Inject(message(agent.KindRequest, "", "f", "w")))
}

func TestBadRules(t *testing.T) {
	for name, r := range map[string]faulty.Rule{
		"type":        {Types: []string{"a["}},
		"function":    {Func: "["},
		"peer":        {Peer: "[x"},
		"first":       {First: -1},
		"every":       {Every: -1},
		"skip":        {Skip: -1},
		"probability": {Probability: 1.5},
		"no number":   {Probability: math.NaN()},
		"delay":       {Do: faulty.Delay(-1)},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := faulty.New(faulty.Options{Rules: []faulty.Rule{r}})
			require.ErrorIs(t, err, faulty.ErrRule)
		})
	}
}
