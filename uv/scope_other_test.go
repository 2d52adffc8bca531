//go:build !linux

package uv_test

import "testing"

// againWithLinkLocal skips the test: this system has no network namespaces, in which an interface
// could get a link-local address.
func againWithLinkLocal(t *testing.T) {
	t.Helper()
	t.Skip("no interface has a link-local IPv6 address")
}
