// Package lint holds the house rules that a machine can check, as tests: which
// package may import which, and what from outside; what a line of product code
// must not say; and that tests neither sleep nor leave anything behind. It has no
// code but its tests.
package lint
