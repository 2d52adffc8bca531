//go:build !race

package interop

// large is what no connection or ring takes in at once.
const large = 64 << 20
