//go:build !linux

package segment

import (
	"os"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

func create(int, bool, ...Extent) (*Segment, error) { return nil, notSupported() }

func open(*os.File, int64) (*Segment, error) { return nil, notSupported() }

func advise(pageAdvice, []byte) error { return notSupported() }

func unmap([]byte) error { return nil }

func notSupported() error {
	return probe.NotSupported("shared memory", "%s has no memfd_create", runtime.GOOS)
}
