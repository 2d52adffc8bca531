package store

import (
	"os"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(runRole(role, os.Getenv(pathVar)))
	}
	leakcheck.Main(m)
}
