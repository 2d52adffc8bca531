package device_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestDeviceString(t *testing.T) {
	for _, c := range []struct {
		device device.Device
		want   string
		zero   bool
	}{
		{device.CPU(), "cpu:0", false},
		{device.Device{Kind: "cuda", Index: 7}, "cuda:7", false},
		{device.Device{}, "any", true},
	} {
		require.Equal(t, c.want, c.device.String())
		require.Equal(t, c.zero, c.device.IsZero())
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]device.Device{
		"cpu":             device.CPU(),
		"cpu:0":           device.CPU(),
		"cuda:12":         {Kind: "cuda", Index: 12},
		"npu:2147483647":  {Kind: "npu", Index: 2147483647},
		"x-y.z/any:1":     {Kind: "x-y.z/any", Index: 1},
		"speicher für:00": {Kind: "speicher für"},
	} {
		got, err := device.Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)

		again, err := device.Parse(got.String())
		require.NoError(t, err, text)
		require.Equal(t, got, again, "what String prints can be read")
	}
}

func TestParseRefuses(t *testing.T) {
	for text, why := range map[string]string{
		"":                            "no kind",
		":1":                          "no kind",
		"any":                         "no kind",
		"any:0":                       "no kind",
		"cpu:":                        "bad index",
		"cpu:-1":                      "bad index",
		"cpu:+1":                      "bad index",
		"cpu:1 ":                      "bad index",
		"cpu:1:2":                     "bad index",
		"cpu:0x1":                     "bad index",
		"cpu:2147483648":              "bad index",
		"cpu:99999999999999999999999": "bad index",
	} {
		_, err := device.Parse(text)
		var parse *device.ParseError
		require.ErrorAs(t, err, &parse, text)
		require.Equal(t, text, parse.Text)
		require.ErrorContains(t, err, why, text)
	}
}

func TestText(t *testing.T) {
	for _, d := range []device.Device{{}, device.CPU(), {Kind: "npu", Index: 3}} {
		text, err := json.Marshal(map[string]device.Device{"at": d})
		require.NoError(t, err)
		require.Equal(t, `{"at":"`+d.String()+`"}`, string(text))
		var got map[string]device.Device
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, d, got["at"])
	}
	require.Error(t, json.Unmarshal([]byte(`"npu:x"`), new(device.Device)))
}
