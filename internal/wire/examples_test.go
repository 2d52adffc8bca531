package wire

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

func cuda(i int) device.Device { return device.Device{Kind: "cuda", Index: i} }

func devices(kinds ...string) (list []device.Device) {
	for i, k := range kinds {
		list = append(list, device.Device{Kind: k, Index: i})
	}
	return list
}

// someBrochure returns a new Brochure with several entries in its maps.
func someBrochure() *Brochure {
	return &Brochure{
		TransportDomainDescriptors: map[string]string{"uv": "uv:*", "shm": "shm:x", "ibv": "ibv:*"},
		ChannelDeviceDescriptors: map[string]map[device.Device]string{
			"basic":    {device.CPU(): "any"},
			"cuda_ipc": {cuda(0): "a", cuda(1): "b", cuda(300): "c"},
			"none":     nil,
		},
	}
}

func someAnswer() *BrochureAnswer {
	return &BrochureAnswer{
		Transport:                 "shm",
		Address:                   "3589f",
		TransportRegistrationIDs:  map[uint64]uint64{DescriptorConnection: 41, ReplyConnection: 300},
		TransportDomainDescriptor: "shm:x",
		ChannelRegistrationIDs:    map[string][]uint64{"cma": {2, 1 << 40}, "none": nil},
		ChannelDeviceDescriptors:  map[string]map[device.Device]string{"cma": {device.CPU(): "x"}, "none": nil},
		ChannelForDevicePair: map[DevicePair]string{
			{device.CPU(), device.CPU()}: "cma",
			{device.CPU(), cuda(1)}:      "cuda_basic",
			{cuda(1), device.CPU()}:      "cuda_basic",
		},
	}
}

func unhex(t testing.TB, s string) []byte {
	p, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return p
}

func TestMapsAreSorted(t *testing.T) {
	m := Brochure{
		TransportDomainDescriptors: map[string]string{"c": "3", "a": "1", "b": "2"},
		ChannelDeviceDescriptors: map[string]map[device.Device]string{
			"x": {cuda(2): "", cuda(1): "", device.CPU(): ""},
		},
	}
	require.Equal(t, unhex(t, "b902 bb03 bd0161bd0131 bd0162bd0132 bd0163bd0133 bb01 bd0178 bb03 "+
		"b902bd0363707500bd00 b902bd046375646101bd00 b902bd046375646102bd00"), m.Append(nil))
}

func TestDuplicateKeysTheFirstWins(t *testing.T) {
	m, err := DecodeBrochure(unhex(t, "b902 bb03 bd0162bd0131 bd0161bd0132 bd0162bd0133 "+
		"bb02 bd0178 bb00 bd0178 bb01 b902bd0363707500bd00"), Limits{})
	require.NoError(t, err)
	require.Equal(t, &Brochure{
		TransportDomainDescriptors: map[string]string{"b": "1", "a": "2"},
		ChannelDeviceDescriptors:   map[string]map[device.Device]string{"x": nil},
	}, m)
}

func TestWiderIntegersAreRead(t *testing.T) {
	m, err := DecodePacket(unhex(t, "b8 85 01 00 b9 81 01 00 83 05 00 00 00 00 00 00 00"), Limits{})
	require.NoError(t, err)
	require.Equal(t, RequestedConnection{RegistrationID: 5}, m)

	cma, err := DecodeCMADescriptor(unhex(t, "b9 02 82 05 00 00 00 81 06 00"), Limits{})
	require.NoError(t, err)
	require.Equal(t, CMADescriptor{PID: 5, Ptr: 6}, cma)
}

func TestEmptyMessages(t *testing.T) {
	for name, m := range map[string]encodable{
		"Brochure": &Brochure{}, "BrochureAnswer": &BrochureAnswer{}, "DescriptorReply": &DescriptorReply{},
		"Packet": SpontaneousConnection{}, "CMADescriptor": CMADescriptor{}, "XTHDescriptor": XTHDescriptor{},
		"MPTHello": MPTServerHello{},
	} {
		got, err := kinds[name].decode(m.Append(nil), Limits{})
		require.NoError(t, err, name)
		require.Equal(t, m, got, name)
	}
}
