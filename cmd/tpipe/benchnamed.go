package main

import (
	"errors"
	"slices"
)

// namedFlag is whether the sender names the target device: false, true, or both
// in turn.
type namedFlag []bool

// Set implements flag.Value.
func (n *namedFlag) Set(text string) error {
	switch text {
	case "true":
		*n = namedFlag{true}
	case "false":
		*n = namedFlag{false}
	case "both":
		*n = namedFlag{true, false}
	default:
		return errors.New("want true, false or both")
	}
	return nil
}

// String prints what Set reads.
func (n *namedFlag) String() string {
	switch {
	case len(*n) == 2:
		return "both"
	case slices.Contains(*n, true):
		return "true"
	default:
		return "false"
	}
}

// IsBoolFlag makes -named stand for -named=true.
func (n *namedFlag) IsBoolFlag() bool { return true }
