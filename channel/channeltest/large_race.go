//go:build race

package channeltest

// large is still many times what connections buffer and channels cut: the race
// detector watches every byte.
const large = 16 << 20
