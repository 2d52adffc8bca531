package store

import (
	"cmp"
	"fmt"
	"math"
)

// Limits bound what a store holds. A zero field stands for its default.
type Limits struct {
	KeyBytes   int // of one key; 8 KiB, as in PyTorch's
	ValueBytes int // of one value; 8 MiB, as in PyTorch's
	Keys       int // in the store, and in one call; 65,536
	TotalBytes int // of all keys and values; 256 MiB. A file counts every change.
}

func (l Limits) orDefaults() Limits {
	return Limits{
		KeyBytes:   cmp.Or(l.KeyBytes, 8<<10),
		ValueBytes: cmp.Or(l.ValueBytes, 8<<20),
		Keys:       cmp.Or(l.Keys, 1<<16),
		TotalBytes: cmp.Or(l.TotalBytes, 256<<20),
	}
}

func (l Limits) check(key string, values ...[]byte) error {
	if len(key) > l.KeyBytes {
		return fmt.Errorf("%w: a key of %d bytes, and %d are allowed", ErrLimit, len(key), l.KeyBytes)
	}
	for _, v := range values {
		if len(v) > l.ValueBytes {
			return fmt.Errorf("%w: a value of %d bytes, and %d are allowed", ErrLimit, len(v), l.ValueBytes)
		}
	}
	return nil
}

func (l Limits) checkAll(keys []string) error {
	if len(keys) > l.Keys {
		return fmt.Errorf("%w: %d keys in one call, and %d are allowed", ErrLimit, len(keys), l.Keys)
	}
	for _, k := range keys {
		if err := l.check(k); err != nil {
			return err
		}
	}
	return nil
}

// sum adds as Add promises.
func sum(a, b int64) (int64, error) {
	if b > 0 && a > math.MaxInt64-b || b < 0 && a < math.MinInt64-b {
		return 0, fmt.Errorf("%w: %d and %d", ErrNotNumber, a, b)
	}
	return a + b, nil
}
