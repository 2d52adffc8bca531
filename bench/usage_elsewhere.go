//go:build !linux

package bench

func residentBytes() int { return 0 }

func descriptors() int { return 0 }
