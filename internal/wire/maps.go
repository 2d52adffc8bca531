package wire

import (
	"maps"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

// appendMap appends a map with its entries sorted by key, so that equal
// messages are equal bytes.
func appendMap[K comparable, V any](dst []byte, m map[K]V, compare func(a, b K) int,
	appendKey func([]byte, K) []byte, appendValue func([]byte, V) []byte) []byte {
	dst = nop.AppendMapHeader(dst, len(m))
	for _, k := range slices.SortedFunc(maps.Keys(m), compare) {
		dst = appendValue(appendKey(dst, k), m[k])
	}
	return dst
}

// readMap reads a map whose entries take at least minSize bytes each. The map
// grows with the entries that are really there, whatever their announced
// number.
func readMap[K comparable, V any](r *reader, minSize int, key func(*reader) K, value func(*reader) V) map[K]V {
	n := r.Map(minSize)
	if n == 0 || !r.within(int64(n), int64(r.limits.Entries), "entries") {
		return nil
	}
	m := map[K]V{}
	for range n {
		k, v := key(r), value(r)
		if r.Err() != nil {
			return nil
		}
		if _, duplicate := m[k]; !duplicate {
			m[k] = v
		}
	}
	return m
}
