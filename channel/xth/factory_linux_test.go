package xth_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// The device descriptor ends with the process id and has the form of one recorded from TensorPipe:
// "4314c807-d1f2-4ebb-9432-c0a43a41d690_4_effffffc_25853".
func TestDescriptorNamesTheProcess(t *testing.T) {
	f := xth.New()
	require.NoError(t, f.Viable())
	require.Equal(t, 2, f.Connections(false))
	d := f.DeviceDescriptors()
	require.Len(t, d, 1)
	form := regexp.MustCompile(`^[0-9a-f-]{36}_[0-9a-f]+_[0-9a-f]+_` + strconv.Itoa(os.Getpid()) + `$`)
	require.Regexp(t, form, d[device.CPU()])
}
