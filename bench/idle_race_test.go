//go:build race

package bench

// mostResident, in MiB, is what a process with a hundred pipes may hold. The race
// detector holds much beside.
const mostResident = 1200
