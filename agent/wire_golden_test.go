package agent

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Messages of version 1, which never change, because workers of that version are in use.
func TestGoldenMessages(t *testing.T) {
	one := identity{Name: "worker1", Rank: 1, Incarnation: roster.Incarnation{0: 1, 15: 0xff}}
	two := identity{Name: "worker2", Rank: 2, Incarnation: roster.Incarnation{0: 2}}
	h := hello{Oldest: 1, Newest: 1, Group: "default", From: one, To: two, Nonce: [16]byte{0: 7, 15: 8}, CallBytes: 64 << 20}
	nonce := [16]byte{0: 9, 15: 10}
	a := Agent{token: []byte("secret")}
	routes := []route{{device.Device{Kind: "npu", Index: 1}, device.CPU()}, {device.CPU(), device.Device{Kind: "npu"}}}
	bytes, err := tensor.FromSlice([]uint8{1, 2, 3}, 3)
	require.NoError(t, err)
	value := packed{Data: []byte{1, 2}, Tensors: []*tensor.Tensor{bytes}}
	encode := func(values ...any) []byte {
		e := codec.NewEncoder(codec.NewRegistry(), codec.Limits{})
		for _, v := range values {
			require.NoError(t, e.Encode(v))
		}
		data, _, err := e.Finish()
		require.NoError(t, err)
		return data
	}
	got := map[string][]byte{
		"hello":           encode(&h),
		"welcome":         encode(&welcome{Version: 1, Nonce: nonce, Proof: a.tokenProof("welcome", &h, nonce), CallBytes: 300}),
		"welcome-refused": encode(&welcome{Refusal: &refusal{rejectedVersion, "worker1 speaks version 1, not 2 to 3"}}),
		"proof":           encode(&proof{Proof: a.tokenProof("hello", &h, nonce), Has: true, Routes: routes}),
		"proof-no-token":  encode(&proof{Proof: (&Agent{}).tokenProof("hello", &h, nonce)}),
		"done":            encode(&done{Routes: routes}),
		"done-refused":    encode(&done{Refusal: &refusal{rejectedClosing, "worker1 is closing"}}),

		"group-request": encode(&groupRequest{Op: "gather", Seq: 300, Members: []identity{one, two}, Value: value}),
		"group-reply":   encode(&groupReply{Values: []packed{value, {}}}),
		"group-failure": encode(&groupReply{Failure: newGroupFailure("worker2", errors.New("gone"))}),
		"workload":      encode(&workload{Begun: 300, Active: 2}),

		"request":          appendRequest(nil, flagStack|flagNested, 300, time.Second+1, "agent.group", "name"),
		"request-function": appendRequest(nil, 0, 1, 0, "", "pkg.f"),
		"reply":            appendHead(nil, KindReply, flagPayload, 300),
		"failure":          appendHead(nil, KindFailure, 0, 1<<63),
		"cancel":           appendText(appendHead(nil, KindCancel, 0, 7), "context canceled"),
		"key":              appendKey(nil, 40, 35),
	}
	for name, p := range got {
		text, err := os.ReadFile(filepath.Join("testdata", "wire", name+".hex"))
		require.NoError(t, err)
		want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		require.NoError(t, err)
		require.Equal(t, want, p, name)
	}
}
