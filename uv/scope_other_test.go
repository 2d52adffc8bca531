//go:build !linux

package uv_test

import "testing"

// againWithLinkLocal has no network namespace to give an address to.
func againWithLinkLocal(t *testing.T) {
	t.Helper()
	t.Skip("no interface has a link-local IPv6 address")
}
