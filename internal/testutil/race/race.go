// Package race reduces how often tests repeat a sequence under the race detector. The detector
// finds races from the order of synchronisation, for which more bytes and repetitions help little,
// and makes each repetition many times slower. Every sequence still runs under it at least once.
package race

// Pick returns less in programs built with the race detector, and normal in other programs.
func Pick[T any](normal, less T) T { return pick(Enabled, normal, less) }

func pick[T any](enabled bool, normal, less T) T {
	if enabled {
		return less
	}
	return normal
}

// Includes reports whether a test that has the cases 0 to n-1 should run case i. Without the race
// detector it always returns true. With the race detector it returns true for every k-th case,
// beginning with case 0, and for the last one. Choose an odd k, so that even and odd cases are run.
func Includes(i, n, k int) bool { return includes(Enabled, i, n, k) }

func includes(enabled bool, i, n, k int) bool { return !enabled || i%k == 0 || i == n-1 }
