package samehost_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

func TestMain(m *testing.M) {
	short.SkipPackage("pairs of processes, many of which are killed or have one call less")
	leakcheck.Main(m)
}
