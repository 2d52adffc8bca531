package bulk_test

import (
	"os"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(peerVar); order != "" {
		receive(order)
		return
	}
	leakcheck.Main(m)
}
