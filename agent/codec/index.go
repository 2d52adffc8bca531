package codec

// index numbers keys in the order in which they come. A few are found faster by
// looking at each than by a map, and without memory.
type index[K comparable] struct {
	keys   []K
	places map[K]int // nil or empty as long as there are few
}

const few = 16

func (x *index[K]) find(k K) (place int, ok bool) {
	if len(x.keys) > few {
		place, ok = x.places[k]
		return place, ok
	}
	for i := range x.keys {
		if x.keys[i] == k {
			return i, true
		}
	}
	return 0, false
}

// add gives a key that is not there the next number.
func (x *index[K]) add(k K) int {
	place := len(x.keys)
	x.keys = append(x.keys, k)
	switch {
	case place > few:
		x.places[k] = place
	case place == few:
		x.fill()
	}
	return place
}

func (x *index[K]) fill() {
	if x.places == nil {
		x.places = make(map[K]int, 2*few)
	}
	for i, k := range x.keys {
		x.places[k] = i
	}
}

// reset forgets the keys and keeps the memory, unless it is that of a message
// much larger than most.
func (x *index[K]) reset() {
	if len(x.keys) > kept {
		*x = index[K]{}
		return
	}
	clear(x.keys)
	x.keys = x.keys[:0]
	clear(x.places)
}

// kept is how many entries of its tables an Encoder or Decoder keeps memory
// for.
const kept = 1024

// emptied is s without its elements, which it no longer refers to.
func emptied[T any](s []T) []T {
	if cap(s) > kept {
		return nil
	}
	clear(s)
	return s[:0]
}
