package hostile_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestRecording replays the recorded connections of C++ ends to the victim, unchanged and in both
// roles, and checks that all messages arrive in both directions.
func TestRecording(t *testing.T) {
	for name, want := range map[string]pipe.Traffic{
		"client":   {Messages: 4, Bytes: 13 + 8 + 9},
		"listener": {Messages: 1, Bytes: 4 + 9},
	} {
		t.Run(name, func(t *testing.T) {
			v, a := newServingVictim(t)
			p := &replayer{t: t, wait: testTimeout, conns: map[int]*raw{}}
			p.beforeClose = func() {
				waitFor(t, func() bool {
					served := a.last.Load()
					return served != nil && served.Stats().Received == want && served.Stats().Sent.Messages == 1
				}, "all messages arrive")
			}
			if name == "client" {
				v.attackAsClient(p, clientEvents(t))
			} else {
				v.attackAsListener(p, a, func(l []event) []event { return l })
			}
			v.requireIdle(t)
		})
	}
}

// TestMutatedRecordings replays the recorded connections with random mutations, in both roles, and
// checks that the victim's other pipe still works and that no handshake or pipe is left.
func TestMutatedRecordings(t *testing.T) {
	v, a := newServingVictim(t)
	byteGen := rapid.Byte()
	mutationGen := rapid.Custom(func(t *rapid.T) mutation {
		return mutation{byteGen.Draw(t, "op"), byteGen.Draw(t, "line"), byteGen.Draw(t, "offset"), byteGen.Draw(t, "value")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		faults := rapid.SliceOfN(mutationGen, 1, 4).Draw(rt, "faults")
		if rapid.Bool().Draw(rt, "listens") {
			v.attackAsListener(newFastReplayer(t), a, func(l []event) []event { return mutate(l, faults) })
		} else {
			v.attackAsClient(newFastReplayer(t), mutate(clientEvents(t), faults))
		}
		v.requireHealthy(t)
	})
	v.requireIdle(t)
}

// FuzzServerConn replays the recorded client with the mutations that the fuzzer's input describes,
// and checks that the victim's other pipe still works.
func FuzzServerConn(f *testing.F) {
	for op := range byte(10) {
		for n := range byte(5) {
			f.Add([]byte{op, 2 * n, 9 + n, 1 + n})
		}
	}
	f.Add([]byte{})
	v, _ := newServingVictim(f)
	f.Cleanup(func() {
		if !f.Failed() {
			v.waitIdle(f)
		}
	})
	f.Fuzz(func(t *testing.T, program []byte) {
		v.attackAsClient(newFastReplayer(t), mutate(clientEvents(t), mutations(program)))
		v.requireHealthy(t)
	})
}
