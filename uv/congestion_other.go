//go:build !linux

package uv

import "net"

// unpace does nothing: other systems do not pace by themselves.
func unpace(*net.TCPConn) {}
