package thirdparty_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/thirdparty"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// TestConformance checks that the transport keeps the contract: a failure of a test that uses it is
// not one of the transport.
func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Backend{
		Name:         "thirdparty",
		New:          func(*testing.T) transport.Transport { return thirdparty.Transport{} },
		Addr:         "127.0.0.1:0",
		DialRaw:      thirdparty.DialRaw,
		AppendHeader: func(dst []byte, size int) []byte { return frame.AppendHeader(dst, int64(size)) },
	})
}
