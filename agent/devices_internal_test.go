package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A peer cannot have memory allocated on a device whose kind is not among the Kinds, or that is not among the Devices.
func TestTensorForUnknownKind(t *testing.T) {
	d, err := newDevices(&Config{Name: "a"})
	require.NoError(t, err)
	_, err = d.alloc(&inMessage{}, device.Device{Kind: "npu"}, 16, nil)
	require.ErrorIs(t, err, ErrProtocol)
	require.ErrorContains(t, err, "tensor for device npu:0, which is not among the Kinds here")

	kind := delayed.New("npu", 2)
	defer kind.Close()
	d, err = newDevices(&Config{Name: "a", Kinds: []device.Kind{kind}, Devices: kind.Devices()[:1]})
	require.NoError(t, err)
	_, err = d.alloc(&inMessage{}, kind.Devices()[0], 16, nil)
	require.NoError(t, err)
	_, err = d.alloc(&inMessage{}, kind.Devices()[1], 16, nil)
	require.ErrorIs(t, err, ErrProtocol)
	require.ErrorContains(t, err, "tensor for device npu:1, which is not among the Devices here")
}

// The copy of a message has the contents that the tensors had, whatever is done with them later.
func TestCopyOfDeviceMessage(t *testing.T) {
	kind := delayed.New("npu", 1)
	defer kind.Close()
	s, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	b, err := kind.Alloc(kind.Devices()[0], 4, s)
	require.NoError(t, err)
	require.NoError(t, kind.Write(b, []byte("kept")))
	d, err := newDevices(&Config{Name: "a", Kinds: []device.Kind{kind}})
	require.NoError(t, err)
	m, err := copyMessage(&pipe.Message{Tensors: []pipe.Tensor{{Buffer: b, TargetDevice: b.Device()}}}, d)
	require.NoError(t, err)
	require.NoError(t, kind.Write(b, []byte("over")))
	got := make([]byte, 4)
	require.NoError(t, kind.Read(got, m.Tensors[0].Buffer))
	require.NoError(t, s.Synchronize(t.Context()))
	require.Equal(t, "kept", string(got))

	none, err := newDevices(&Config{Name: "a"})
	require.NoError(t, err)
	_, err = copyMessage(&pipe.Message{Tensors: []pipe.Tensor{{Buffer: b}}}, none)
	require.ErrorIs(t, err, ErrArguments)
}
