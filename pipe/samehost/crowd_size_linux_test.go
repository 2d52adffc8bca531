//go:build !race

package samehost_test

// crowdSize is how many processes there are in a crowd.
const crowdSize = 64
