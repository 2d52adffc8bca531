//go:build !linux

package bench

import (
	"errors"
	"fmt"
	"runtime"
)

func residentBytes() int { return 0 }

func pageBytes() int { return 0 }

func descriptors() int { return 0 }

func sharedBytes() (mapped, pages int) { return 0, 0 }

func threads() int { return 0 }

func usageOf(int) (processUsage, error) {
	return processUsage{}, fmt.Errorf("%s does not report what another process uses: %w", runtime.GOOS, errors.ErrUnsupported)
}
