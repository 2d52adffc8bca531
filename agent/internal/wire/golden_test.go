package wire

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/devicemap"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// goldens returns one encoded message of each kind of protocol version 1, by the name of its file
// in testdata.
func goldens(t testing.TB) map[string][]byte {
	one := Identity{Name: "worker1", Rank: 1, Incarnation: roster.Incarnation{0: 1, 15: 0xff}}
	two := Identity{Name: "worker2", Rank: 2, Incarnation: roster.Incarnation{0: 2}}
	h := Hello{Oldest: 1, Newest: 1, Group: "default", From: one, To: two, Nonce: [16]byte{0: 7, 15: 8}, CallBytes: 64 << 20}
	nonce, token := [16]byte{0: 9, 15: 10}, []byte("secret")
	routes := []Route{
		{From: device.Device{Kind: "npu", Index: 1}, To: device.CPU()},
		{From: device.CPU(), To: device.Device{Kind: "npu"}},
	}
	bytes, err := tensor.FromSlice([]uint8{1, 2, 3}, 3)
	require.NoError(t, err)
	value := Packed{Data: []byte{1, 2}, Tensors: []*tensor.Tensor{bytes}}
	handshake := func(m any) []byte {
		data, err := EncodeHandshake(m)
		require.NoError(t, err)
		return data
	}
	group := func(m any) []byte {
		e := codec.NewEncoder(codec.NewRegistry(), codec.Limits{})
		require.NoError(t, e.Encode(m))
		data, _, err := e.Finish()
		require.NoError(t, err)
		return data
	}
	status, err := EncodeStatus(&Status{Calls: 2, Serving: 1, Sent: 300, Received: 1 << 40, Pipes: []PipeStatus{
		{Worker: "worker2", Rank: 2, Address: "127.0.0.1:4000", Path: "uv+basic", Calls: 1, Serving: 1, Sent: 300, Received: 7},
	}, Metrics: []Metric{{Name: "forks", Value: 300}, {Name: "owner_rrefs", Value: 2}}})
	require.NoError(t, err)
	member, err := EncodeMember(NewMember(true, devicemap.Node{
		Devices: []device.Device{{Kind: "npu", Index: 1}}, Counts: map[string]int{"npu": 2},
		Maps: map[string]devicemap.Map{"worker2": {{Kind: "npu", Index: 1}: device.CPU(), device.CPU(): {Kind: "npu"}}, "worker3": {}},
	}))
	require.NoError(t, err)
	return map[string][]byte{
		"member":          member,
		"status":          status,
		"hello":           handshake(&h),
		"welcome":         handshake(&Answer{Version: Version, Nonce: nonce, Proof: h.Prove(token, Listening, nonce), CallBytes: 300}),
		"welcome-refused": handshake(&Answer{Refusal: &Refusal{Code: RejectedVersion, Text: "worker1 speaks version 1, not 2 to 3"}}),
		"proof":           handshake(&Proof{Proof: h.Prove(token, Dialing, nonce), Has: true, Routes: routes}),
		"proof-no-token":  handshake(&Proof{Proof: h.Prove(nil, Dialing, nonce)}),
		"done":            handshake(&Done{Routes: routes}),
		"done-refused":    handshake(&Done{Refusal: &Refusal{Code: RejectedClosing, Text: "worker1 is closing"}}),

		"group-request": group(&GroupRequest{Op: "gather", Seq: 300, Members: []Identity{one, two}, Value: value}),
		"group-reply":   group(&GroupReply{Values: []Packed{value, {}}}),
		"group-failure": group(&GroupReply{Failure: &GroupFailure{Code: GroupCanceled, Worker: "worker2", Text: "gone"}}),
		"workload":      group(&Workload{Begun: 300, Active: 2}),

		"request":          AppendRequest(nil, FlagStack|FlagNested, 300, time.Second+1, GroupType, "name"),
		"request-function": AppendRequest(nil, 0, 1, 0, "", "pkg.f"),
		"reply":            payload(AppendReply(nil, KindReply, 300)),
		"failure":          AppendReply(nil, KindFailure, 1<<63),
		"cancel":           AppendCancel(nil, 7, "context canceled"),
		"data":             AppendData(nil, FlagCaller|FlagEnd, 7, 300),
		"credit":           AppendCredit(nil, FlagCaller, 7, 1<<20),
		"number":           AppendNumber(nil, 1<<20),
		"key":              AppendKey(nil, 40, 35),
	}
}

// TestGoldenMessages tests that the encoding of each message equals that in testdata. It must never
// change, because workers of this version are in use.
func TestGoldenMessages(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.hex"))
	require.NoError(t, err)
	messages := goldens(t)
	require.Len(t, messages, len(files))
	for name, message := range messages {
		require.Equal(t, golden(t, name+".hex"), message, name)
	}
}

// golden returns the bytes in a file of testdata.
func golden(t *testing.T, name string) []byte {
	text, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	data, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	require.NoError(t, err)
	return data
}

// TestStatusWithoutMetrics tests that the status of a worker that knows no metrics is decoded.
func TestStatusWithoutMetrics(t *testing.T) {
	s, err := DecodeStatus(golden(t, filepath.Join("older", "status.hex")))
	require.NoError(t, err)
	require.Equal(t, &Status{Calls: 2, Serving: 1, Sent: 300, Received: 1 << 40, Pipes: []PipeStatus{
		{Worker: "worker2", Rank: 2, Address: "127.0.0.1:4000", Path: "uv+basic", Calls: 1, Serving: 1, Sent: 300, Received: 7},
	}}, s)
}
