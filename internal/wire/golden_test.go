package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire/capture"
)

// Texts of the machine on which the captures were made.
const (
	boot       = "4314c807-d1f2-4ebb-9432-c0a43a41d690"
	shmDomain  = "shm:" + boot + "_4_effffff9"
	cmaDevice  = "cma:" + boot + "_4_effffffc_4_effffffd_0_0_1fffeffffff"
	mpt2Device = "2:uv:*:uv:*"
	mpt3Device = "3:uv:*:uv:*:uv:*"
)

// setup is the configuration of both processes of a capture, and the result.
type setup struct {
	offered map[string]string // the client's descriptor of cpu:0 by channel
	address string
	channel string   // the chosen channel
	ids     []uint64 // ids of its connections
}

var setups = map[string]setup{
	"basic": {offered: map[string]string{"basic": "any"},
		address: "127.0.0.1:39057", channel: "basic", ids: []uint64{1}},
	"mpt": {offered: map[string]string{"mpt_uv": mpt2Device},
		address: "127.0.0.1:37685", channel: "mpt_uv", ids: []uint64{1}},
	"mptbasic": {offered: map[string]string{"basic": "any", "mpt_uv": mpt3Device},
		address: "127.0.0.1:34063", channel: "mpt_uv", ids: []uint64{1}},
	"cma": {offered: map[string]string{"cma": cmaDevice},
		address: "127.0.0.1:38637", channel: "cma", ids: []uint64{1, 2}},
	"xth": {offered: map[string]string{"xth": boot + "_4_effffffc_25853"},
		address: "127.0.0.1:44863", channel: "xth", ids: []uint64{1, 2}},
}

func onCPU(text string) map[device.Device]string {
	return map[device.Device]string{device.CPU(): text}
}

func TestHandshakes(t *testing.T) {
	for name, want := range setups {
		t.Run(name, func(t *testing.T) {
			s := loadConversation(t, name)
			require.Equal(t, SpontaneousConnection{ContextName: "clientctx"}, s.packet)

			offered := map[string]map[device.Device]string{}
			for channel, text := range want.offered {
				offered[channel] = onCPU(text)
			}
			require.Equal(t, &Brochure{
				TransportDomainDescriptors: map[string]string{"uv": "uv:*"},
				ChannelDeviceDescriptors:   offered,
			}, s.brochure)
			require.Equal(t, &BrochureAnswer{
				Transport:                 "uv",
				Address:                   want.address,
				TransportRegistrationIDs:  map[uint64]uint64{ReplyConnection: 0},
				TransportDomainDescriptor: "uv:*",
				ChannelRegistrationIDs:    map[string][]uint64{want.channel: want.ids},
				ChannelDeviceDescriptors:  map[string]map[device.Device]string{want.channel: offered[want.channel]},
				ChannelForDevicePair:      map[DevicePair]string{{device.CPU(), device.CPU()}: want.channel},
			}, s.answer)
		})
	}
}

// TestHandshakeThatChangesTheTransport checks that the recorded handshake of two C++ processes that
// change from uv to shm is decoded to the expected Brochure and BrochureAnswer. No message follows
// on the first connection.
func TestHandshakeThatChangesTheTransport(t *testing.T) {
	s := loadConversation(t, "all")
	require.Equal(t, &Brochure{
		TransportDomainDescriptors: map[string]string{"uv": "uv:*", "shm": shmDomain},
		ChannelDeviceDescriptors: map[string]map[device.Device]string{
			"basic": onCPU("any"), "mpt_uv": onCPU(mpt2Device), "cma": onCPU(cmaDevice),
			"xth": onCPU(boot + "_4_effffffc_25921"),
		},
	}, s.brochure)
	require.Equal(t, &BrochureAnswer{
		Transport:                 "shm",
		Address:                   "3589f",
		TransportRegistrationIDs:  map[uint64]uint64{DescriptorConnection: 0, ReplyConnection: 1},
		TransportDomainDescriptor: shmDomain,
		ChannelRegistrationIDs:    map[string][]uint64{"cma": {2, 3}},
		ChannelDeviceDescriptors:  map[string]map[device.Device]string{"cma": onCPU(cmaDevice)},
		ChannelForDevicePair:      map[DevicePair]string{{device.CPU(), device.CPU()}: "cma"},
	}, s.answer)
	require.Empty(t, s.toServer)
	require.Empty(t, s.toClient)
}

// tensor returns a list with the descriptor of one tensor of this length, from cpu:0 to target,
// with the metadata "tm".
func tensor(length uint64, target device.Device) []TensorDescriptor {
	return []TensorDescriptor{{Length: length, SourceDevice: device.CPU(), TargetDevice: target, Metadata: []byte("tm")}}
}

// described returns an expected message with these descriptors. texts are the bytes of its
// payloads.
func described(metadata string, payloads []PayloadDescriptor, tensors []TensorDescriptor, texts ...string) message {
	return message{Descriptor{[]byte(metadata), payloads, tensors}, texts}
}

// TestMessages checks that the messages and replies in each recording of setups, decoded, are the
// expected ones, which are the same in all of them.
func TestMessages(t *testing.T) {
	anywhere, cpu := device.Device{}, device.CPU()
	for name := range setups {
		t.Run(name, func(t *testing.T) {
			s := loadConversation(t, name)
			require.Equal(t, []message{
				described("meta0", []PayloadDescriptor{{13, []byte("pm")}}, nil, "hello payload"),
				described("meta1", nil, tensor(8, anywhere)),
				described("meta2", nil, tensor(9, cpu)),
				described("", []PayloadDescriptor{{0, []byte{}}}, tensor(0, cpu), ""),
			}, s.toServer)
			require.Equal(t, []message{
				described("reply", []PayloadDescriptor{{4, []byte{}}}, tensor(9, anywhere), "pong"),
			}, s.toClient)
			reply := []DescriptorReply{{TargetDevices: []device.Device{cpu}}}
			require.Equal(t, map[capture.Direction][]DescriptorReply{
				capture.ToClient: reply, // to meta1
				capture.ToServer: reply, // to reply
			}, s.replies)
		})
	}
}

func texts(frames [][]byte) (list []string) {
	for _, f := range frames {
		list = append(list, string(f))
	}
	return list
}

func TestBasicTensors(t *testing.T) {
	s := loadConversation(t, "basic")
	require.Equal(t, []string{"ABCDEFGH", "abcdefghi"}, texts(s.channel[0].ToServer))
	require.Equal(t, []string{"abcdefghi"}, texts(s.channel[0].ToClient))
}

func TestMPTLanes(t *testing.T) {
	for name, want := range map[string]struct {
		hello    MPTServerHello
		toServer [][]string
	}{
		"mpt": {
			MPTServerHello{[]MPTLane{{"127.0.0.1:36001", 0}, {"127.0.0.1:40861", 1}}},
			[][]string{{"ABCD", "abcd"}, {"EFGH", "efghi"}},
		},
		"mptbasic": {
			MPTServerHello{[]MPTLane{{"127.0.0.1:34089", 0}, {"127.0.0.1:34917", 1}, {"127.0.0.1:34605", 2}}},
			[][]string{{"AB", "abc"}, {"CDE", "def"}, {"FGH", "ghi"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := loadConversation(t, name)
			require.Empty(t, s.channel[0].ToServer)
			require.Len(t, s.channel[0].ToClient, 1)
			require.Equal(t, want.hello, helloOf(t, s.channel[0].ToClient[0]))
			require.Len(t, s.lanes, len(want.toServer))
			for i, lane := range s.lanes {
				require.Equal(t, want.toServer[i], texts(lane.ToServer))
				require.Equal(t, want.toServer[i][1:], texts(lane.ToClient))
			}
		})
	}
}

func TestCMADescriptors(t *testing.T) {
	s := loadConversation(t, "cma")
	decode := func(frame []byte) CMADescriptor {
		m, err := DecodeCMADescriptor(frame, Limits{})
		return exact(t, frame, m, err)
	}
	require.Len(t, s.channel[0].ToServer, 2)
	require.Equal(t, CMADescriptor{PID: 25792, Ptr: 0x55d050584470}, decode(s.channel[0].ToServer[0]))
	require.Equal(t, CMADescriptor{PID: 25792, Ptr: 0x55d050584450}, decode(s.channel[0].ToServer[1]))
	require.Len(t, s.channel[0].ToClient, 1)
	require.Equal(t, CMADescriptor{PID: 25791, Ptr: 0x56091b03a450}, decode(s.channel[0].ToClient[0]))
	requireCompletions(t, s.channel[1])
}

func TestXTHDescriptors(t *testing.T) {
	s := loadConversation(t, "xth")
	decode := func(frame []byte) XTHDescriptor {
		m, err := DecodeXTHDescriptor(frame, Limits{})
		return exact(t, frame, m, err)
	}
	require.Len(t, s.channel[0].ToServer, 2)
	require.Equal(t, XTHDescriptor{Ptr: 0x55abcf5ae470}, decode(s.channel[0].ToServer[0]))
	require.Equal(t, XTHDescriptor{Ptr: 0x55abcf5ae450}, decode(s.channel[0].ToServer[1]))
	require.Len(t, s.channel[0].ToClient, 1)
	require.Equal(t, XTHDescriptor{Ptr: 0x55abcf5ae450}, decode(s.channel[0].ToClient[0]))
	requireCompletions(t, s.channel[1])
}

// requireCompletions requires that conn, the second connection of the channel cma or xth, carries
// an empty frame for each tensor, in the opposite direction of the tensor: two to the client and
// one to the server.
func requireCompletions(t *testing.T, conn capture.Connection) {
	require.Equal(t, []string{"", ""}, texts(conn.ToClient))
	require.Equal(t, []string{""}, texts(conn.ToServer))
}

// The bytes are derived from TensorPipe's source: an announcement of a later part, and of the first one.
func TestCUDAIPCDescriptors(t *testing.T) {
	later := CUDAIPCDescriptor{Slot: 2}
	require.Equal(t, []byte{0xb9, 3, 0, 2, 0xbe}, later.Append(nil))

	first := CUDAIPCDescriptor{Device: 1, Outbox: &CUDAIPCOutbox{Process: "4_effffffc_12345678901"}}
	first.Outbox.Events = make([][64]byte, 4)
	p := first.Append(nil)
	require.Equal(t, []byte{0xb9, 3, 1, 0, 0xb9, 3, 0xbd, 22}, p[:8])
	require.Equal(t, []byte{0xbd, 64}, p[30:32])
	require.Equal(t, []byte{0xba, 4, 0xbd, 64}, p[96:100])
	require.Len(t, p, 30+66+2+4*66)
	for _, m := range []CUDAIPCDescriptor{later, first} {
		got, err := DecodeCUDAIPCDescriptor(m.Append(nil), Limits{})
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
}
