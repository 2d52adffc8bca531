// Package lint checks rules of this repository in tests: which packages and modules a package may
// import, what product code must not contain, that names are terms and not metaphors, and that
// tests neither sleep nor leak. It has no code but its tests.
package lint
