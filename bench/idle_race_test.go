//go:build race

package bench

const (
	// mostResident, in MiB, is what a process with a hundred pipes may hold. The race
	// detector holds much beside.
	mostResident = 1200

	// mostCarried is the largest message that idle pipes have carried in tests: with
	// larger ones they take a minute.
	mostCarried = 1_500_000
)
