package tensor

import "runtime"

// SelfOverlaps reports whether two elements of t may share memory, as after Expand. It never
// returns false if two do, but may return true for unusual strides with which none do.
func SelfOverlaps(t *Tensor) bool { return t.selfOverlaps() }

// Overlap reports whether an element of b may lie between the first and the last element of a in
// memory. It never returns false if two elements share memory, but may return true if they only
// alternate. The error is ErrReleased after Release, or a *DeviceError if the host cannot address
// the memory.
func Overlap(a, b *Tensor) (bool, error) {
	p, err := a.storage.Bytes()
	if err != nil {
		return false, err
	}
	q, err := b.storage.Bytes()
	if err != nil {
		return false, err
	}
	overlap := intersect(a.window(p), b.window(q))
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
	return overlap, nil
}
