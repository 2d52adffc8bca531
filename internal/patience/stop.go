package patience

import (
	"os"
	"syscall"
	"testing"
)

// Stop stops a child of this process as SIGSTOP does, and returns when all its threads
// stand still: until then it may go on with what it does. It ends the test if the child has
// ended before.
func Stop(t testing.TB, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	err := error(syscall.EINTR)
	for err == syscall.EINTR {
		_, err = syscall.Wait4(p.Pid, &status, syscall.WUNTRACED, nil)
	}
	if err != nil || !status.Stopped() {
		t.Fatalf("the process has ended before it could be stopped: %v", err)
	}
}
