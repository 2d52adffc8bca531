//go:build !race

package bench

// mostResident, in MiB, is what a process with a hundred pipes may hold.
const mostResident = 300
