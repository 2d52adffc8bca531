//go:build !amd64 || race

package memcopy

const (
	hasNonTemporal = false
	hasFastString  = false

	block = 1
)

func misaligned([]byte) int { return 0 }

func nonTemporal(*byte, *byte, int) {}

func fastString(*byte, *byte, int) {}
