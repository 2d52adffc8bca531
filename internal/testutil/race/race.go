// Package race reduces how often tests repeat a sequence under the race detector. The detector
// finds races from the order of synchronisation, for which more bytes and repetitions help little,
// and makes each repetition many times slower. Every sequence still runs under it at least once.
package race

// Pick returns less in programs built with the race detector, and normal in others.
func Pick[T any](normal, less T) T { return pick(Enabled, normal, less) }

func pick[T any](enabled bool, normal, less T) T {
	if enabled {
		return less
	}
	return normal
}

// Includes reports whether a test of the cases 0 to n-1 should run case i: always without the race
// detector, and with it only every k-th case and the last one. An odd k includes both even and odd
// cases.
func Includes(i, n, k int) bool { return includes(Enabled, i, n, k) }

func includes(enabled bool, i, n, k int) bool { return !enabled || i%k == 0 || i == n-1 }
