// Package twohosts gives tests a second host: a network namespace that is connected to this one by
// a veth pair. Processes there share the files of this machine, but no network interface, no port
// and no abstract Unix socket.
package twohosts

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Required is the environment variable that is set where network namespaces are known to work, so
// that New fails there and does not skip the test.
const Required = "TENSORPIPE_REQUIRE_NETNS"

// Hosts are this host and another one.
type Hosts struct {
	Here, There string // IPv4 addresses of the two ends of the veth pair

	namespace, far string
}

// New creates a second host, a network namespace that a veth pair connects to this one, and returns
// the addresses of both. It is deleted at the end of the test. If that is not possible, for which
// root and the program ip are needed, New skips the test, or fails it if the environment variable
// Required is set. A test process can have one second host at a time.
func New(t *testing.T) Hosts {
	t.Helper()
	pid := os.Getpid()
	subnet := fmt.Sprintf("198.%d.%d.", 18+pid>>14&1, pid>>6&255) // a range for network benchmarks
	near := fmt.Sprint("tpn", pid)
	h := Hosts{
		Here: subnet + fmt.Sprint(pid&63*4+1), There: subnet + fmt.Sprint(pid&63*4+2),
		namespace: fmt.Sprint("tphost", pid), far: fmt.Sprint("tpf", pid),
	}
	t.Cleanup(func() { _, _ = ip("link del " + near) }) // the kernel may have removed it with the namespace
	addNamespace(t, h.namespace)
	inside := "-n " + h.namespace + " "
	for _, command := range []string{
		"link add " + near + " address 02:00:00:00:78:01 type veth peer name " + h.far +
			" address 02:00:00:00:78:02 netns " + h.namespace,
		"addr add " + h.Here + "/30 dev " + near,
		"link set " + near + " up",
		// So that only the connections themselves notice a link that is down.
		"neigh replace " + h.There + " lladdr 02:00:00:00:78:02 nud permanent dev " + near,
		inside + "addr add " + h.There + "/30 dev " + h.far,
		inside + "link set " + h.far + " up",
		inside + "link set lo up",
	} {
		if out, err := ip(command); err != nil {
			t.Fatalf("ip %s: %v: %s", command, err, out)
		}
	}
	return h
}

// SetLink sets the second host's end of the link up if up is true, and down otherwise. It fails the
// test if that is not possible. A peer detects a link that is down only because its bytes are not
// acknowledged.
func (h Hosts) SetLink(t *testing.T, up bool) {
	t.Helper()
	state := "down"
	if up {
		state = "up"
	}
	if out, err := ip("-n " + h.namespace + " link set " + h.far + " " + state); err != nil {
		t.Fatalf("setting the link %s: %v: %s", state, err, out)
	}
}

// Command returns a command, not started, that runs the program name with args on the second host.
func (h Hosts) Command(name string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", h.namespace, name}, args...)...)
}

// ip runs the program ip with arguments, which are separated by spaces. It returns the output of
// the program, and an error if its exit status is not 0.
func ip(arguments string) ([]byte, error) {
	return exec.Command("ip", strings.Fields(arguments)...).CombinedOutput()
}

// Isolated makes two new hosts with these IPv4 addresses, which must be in one network of 30 bits.
// They are connected to each other and to nothing else, so that tests can use any address and port
// there. It returns a function that makes a command on the first, and one for the second. It skips
// or fails the test as New does; the hosts are deleted when it ends.
func Isolated(t *testing.T, first, second string) (onFirst, onSecond func(name string, args ...string) *exec.Cmd) {
	t.Helper()
	pid := os.Getpid()
	a, b := fmt.Sprint("tpone", pid), fmt.Sprint("tptwo", pid)
	addNamespace(t, a)
	addNamespace(t, b)
	for _, command := range []string{
		"-n " + a + " link add veth0 type veth peer name veth0 netns " + b,
		"-n " + a + " addr add " + first + "/30 dev veth0", "-n " + b + " addr add " + second + "/30 dev veth0",
		"-n " + a + " link set veth0 up", "-n " + b + " link set veth0 up",
		"-n " + a + " link set lo up", "-n " + b + " link set lo up",
	} {
		if out, err := ip(command); err != nil {
			t.Fatalf("ip %s: %v: %s", command, err, out)
		}
	}
	return Hosts{namespace: a}.Command, Hosts{namespace: b}.Command
}

// addNamespace adds a network namespace, and deletes it when the test ends. It skips the test, or
// fails it if Required is set, where that is not possible.
func addNamespace(t *testing.T, name string) {
	t.Helper()
	skip := t.Skipf
	if os.Getenv(Required) != "" {
		skip = func(format string, args ...any) { t.Helper(); t.Fatalf(Required+" is set, but: "+format, args...) }
	}
	if os.Geteuid() != 0 {
		skip("network namespaces need root")
	}
	if out, err := ip("netns add " + name); err != nil {
		skip("no network namespaces here: %v: %s", err, out)
	}
	t.Cleanup(func() { _, _ = ip("netns del " + name) })
}
