package pipe

// runs is a set of numbers, kept as runs of neighbours: while one message is
// being read for long, those that are read meanwhile take no memory each.
type runs struct {
	ends   map[uint64]uint64 // of each first number, the one behind the last
	starts map[uint64]uint64 // the reverse
}

// add puts in a number that is not in it.
func (r *runs) add(n uint64) {
	if r.ends == nil {
		r.ends, r.starts = map[uint64]uint64{}, map[uint64]uint64{}
	}
	start, end := n, n+1
	if before, ok := r.starts[n]; ok {
		start = before
		delete(r.starts, n)
	}
	if behind, ok := r.ends[n+1]; ok {
		end = behind
		delete(r.ends, n+1)
	}
	r.ends[start], r.starts[end] = end, start
}

// take takes out the run that starts with n, and returns the number behind it; n
// itself if there is none.
func (r *runs) take(n uint64) (end uint64) {
	end, ok := r.ends[n]
	if !ok {
		return n
	}
	delete(r.ends, n)
	delete(r.starts, end)
	return end
}
