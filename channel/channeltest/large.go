//go:build !race

package channeltest

// large is a size that takes every path for large tensors many times over.
const large = 64 << 20
