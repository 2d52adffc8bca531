// Package race says whether the race detector watches this program. It finds
// races by how goroutines cross each other, for which more bytes and more
// repetitions do little, and makes each of those many times as dear. So tests that
// repeat one sequence do it less often under the detector, and none does without
// it: what they go through stays the same.
package race

// Pick returns how much of something a test takes: usual, or less under the race
// detector.
func Pick[T any](usual, less T) T { return pick(Enabled, usual, less) }

func pick[T any](watched bool, usual, less T) T {
	if watched {
		return less
	}
	return usual
}

// Takes reports whether a test that goes through n points, with one sequence each,
// goes through the i-th: through all of them, and under the race detector only
// through every k-th and the last. An odd k meets both kinds of points that take
// turns.
func Takes(i, n, k int) bool { return takes(Enabled, i, n, k) }

func takes(watched bool, i, n, k int) bool { return !watched || i%k == 0 || i == n-1 }
