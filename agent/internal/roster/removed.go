package roster

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
)

// maxRemoved bounds the incarnations that the store lists as removed.
const maxRemoved = 64

// removedKey returns the key of the list of removed incarnations, the oldest first. It is not
// deleted with a generation.
func (s *keySpace) removedKey() string { return s.prefix + "removed" }

// recordRemoved adds the incarnation id to the list of those that were removed, before it is
// removed, so that the other members can distinguish it from one that has left. Beyond maxRemoved
// the oldest drops out. The error is that of the store or ctx, or matches ErrCorrupt or ErrVersion.
func (v *groupAccess) recordRemoved(ctx context.Context, id Incarnation) error {
	for {
		value, err := v.get(ctx, v.removedKey())
		if err != nil {
			return err
		}
		ids, err := decodeRemoved(value)
		if err != nil || slices.Contains(ids, id) {
			return err
		}
		ids = append(ids, id)
		to := encodeRemoved(ids[max(0, len(ids)-maxRemoved):])
		now, err := v.compareAndSwap(ctx, v.removedKey(), value, to)
		if err != nil || bytes.Equal(now, to) {
			return err
		}
	}
}

// removed reads the list of removed incarnations from the store. The error is that of the store or
// ctx, or matches ErrCorrupt or ErrVersion.
func (v *groupAccess) removed(ctx context.Context) ([]Incarnation, error) {
	value, err := v.get(ctx, v.removedKey())
	if err != nil {
		return nil, err
	}
	return decodeRemoved(value)
}

func encodeRemoved(ids []Incarnation) []byte {
	dst := binary.AppendUvarint(begin(kindRemoved), uint64(len(ids)))
	for _, id := range ids {
		dst = append(dst, id[:]...)
	}
	return dst
}

// decodeRemoved returns the incarnations that encodeRemoved encoded, or none if value is nil. The
// error matches ErrCorrupt or ErrVersion; the result then has no meaning.
func decodeRemoved(value []byte) (ids []Incarnation, err error) {
	if value == nil {
		return nil, nil
	}
	d := decode(value, kindRemoved)
	for range d.number(maxRemoved) {
		ids = append(ids, d.incarnation())
	}
	return ids, d.end()
}
