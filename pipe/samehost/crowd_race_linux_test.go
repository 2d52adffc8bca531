//go:build race

package samehost_test

// crowdSize is how many processes there are in a crowd: under the race detector each
// takes many times as much.
const crowdSize = 16
