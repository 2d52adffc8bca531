package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// A message that the other end would reject because of its size is an error of the end that encodes
// it. Any other message can be decoded.
func TestEncodeIsWithinTheLimitsOfDecode(t *testing.T) {
	var done wire.Done
	for len(done.Routes) < 2000 {
		done.Routes = append(done.Routes, wire.Route{
			From: device.Device{Kind: "npu", Index: len(done.Routes)}, To: device.CPU(),
		})
		data, err := wire.EncodeHandshake(&done)
		if err != nil {
			require.ErrorIs(t, err, codec.ErrLimit)
			break
		}
		require.NoError(t, wire.DecodeHandshake(data, new(wire.Done)))
	}
	require.Greater(t, len(done.Routes), 100)
	require.Less(t, len(done.Routes), 2000)

	_, err := wire.EncodeStatus(&wire.Status{Pipes: make([]wire.PipeStatus, wire.MaxPipes+1)})
	require.ErrorIs(t, err, codec.ErrLimit)
	_, err = wire.EncodeStatus(&wire.Status{Metrics: make([]wire.Metric, wire.MaxMetrics+1)})
	require.ErrorIs(t, err, codec.ErrLimit)
	_, err = wire.EncodeStatus(&wire.Status{Metrics: []wire.Metric{{Name: strings.Repeat("x", wire.MaxMetricName+1)}}})
	require.ErrorIs(t, err, codec.ErrLimit)
	_, err = wire.EncodeStatus(&wire.Status{Pipes: []wire.PipeStatus{{Path: strings.Repeat("x", 5<<20)}}})
	require.ErrorIs(t, err, codec.ErrLimit)
	largest := wire.Status{Pipes: make([]wire.PipeStatus, wire.MaxPipes), Metrics: make([]wire.Metric, wire.MaxMetrics)}
	for i := range largest.Metrics {
		largest.Metrics[i].Name = strings.Repeat("x", wire.MaxMetricName)
	}
	data, err := wire.EncodeStatus(&largest)
	require.NoError(t, err)
	_, err = wire.DecodeStatus(data)
	require.NoError(t, err)
}
