//go:build !race

package race

// Enabled is true in programs that are built with the race detector.
const Enabled = false
