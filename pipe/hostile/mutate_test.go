package hostile_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestRecordedConversation shows that the recordings are good before they are
// spoilt: the messages arrive, both ways.
func TestRecordedConversation(t *testing.T) {
	for name, want := range map[string]pipe.Traffic{
		"client":   {Messages: 4, Bytes: 13 + 8 + 9},
		"listener": {Messages: 1, Bytes: 4 + 9},
	} {
		t.Run(name, func(t *testing.T) {
			v, a := newHost(t)
			p := &player{t: t, wait: patience, conns: map[int]*raw{}}
			p.stay = func() {
				await(t, func() bool {
					served := a.last.Load()
					return served != nil && served.Stats().Received == want && served.Stats().Sent.Messages == 1
				}, "all messages arrive")
			}
			if name == "client" {
				v.attackAsClient(p, clientLines(t))
			} else {
				v.attackAsListener(p, a, func(l []line) []line { return l })
			}
			v.quiet(t)
		})
	}
}

// TestMutatedConversations plays recordings with random faults, in both roles.
func TestMutatedConversations(t *testing.T) {
	v, a := newHost(t)
	byteGen := rapid.Byte()
	mutationGen := rapid.Custom(func(t *rapid.T) mutation {
		return mutation{byteGen.Draw(t, "op"), byteGen.Draw(t, "line"), byteGen.Draw(t, "offset"), byteGen.Draw(t, "value")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		faults := rapid.SliceOfN(mutationGen, 1, 4).Draw(rt, "faults")
		if rapid.Bool().Draw(rt, "listens") {
			v.attackAsListener(hasty(t), a, func(l []line) []line { return spoil(l, faults) })
		} else {
			v.attackAsClient(hasty(t), spoil(clientLines(t), faults))
		}
		v.unharmed(t)
	})
	v.quiet(t)
}

// FuzzServerConn lets the fuzzer choose the faults of a client.
func FuzzServerConn(f *testing.F) {
	for op := range byte(10) {
		for n := range byte(5) {
			f.Add([]byte{op, 2 * n, 9 + n, 1 + n})
		}
	}
	f.Add([]byte{})
	v, _ := newHost(f)
	f.Cleanup(func() {
		if !f.Failed() {
			v.settled(f)
		}
	})
	f.Fuzz(func(t *testing.T, program []byte) {
		v.attackAsClient(hasty(t), spoil(clientLines(t), mutations(program)))
		v.unharmed(t)
	})
}
