//go:build !race

package bench

const (
	// mostResident, in MiB, is what a process with a hundred pipes may hold.
	mostResident = 300

	// mostCarried is the largest message that idle pipes have carried in tests.
	mostCarried = 16 << 20
)
