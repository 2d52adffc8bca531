package bench

import (
	"os"
	"strings"
)

// CongestionControl is the system's algorithm for new TCP connections, on which
// it depends how fast one connection of a peer in C++ goes, also within a machine;
// there uv takes another one. It is "" where the system does not say.
func CongestionControl() string {
	name, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}
