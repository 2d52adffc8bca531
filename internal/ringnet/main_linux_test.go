package ringnet_test

import (
	"os"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(peerVar); order != "" {
		peer(order)
		return
	}
	if kind := os.Getenv(ringsVar); kind != "" {
		answerBells(kind)
		return
	}
	leakcheck.Main(m)
}
