//go:build race

package interop

// large is still many times what a connection or ring takes in at once: the race
// detector watches every byte.
const large = 16 << 20
