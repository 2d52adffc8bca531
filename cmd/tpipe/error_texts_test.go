package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
)

// TestErrorTexts checks that a command which fails prints one line, in which the command, the
// operation and each address are once.
func TestErrorTexts(t *testing.T) {
	nobody, url := freeport.Addr(t), freeport.Addr(t)
	echo, echoURL := startEcho(t, "-listen", "127.0.0.1:0")
	echoAddr := strings.TrimPrefix(echoURL, "uv://")
	receiver, receiverAddr := startRecv(t, t.TempDir(), "-listen", "127.0.0.1:0")
	worker := start(t, "worker", "-rendezvous", url, "-store")
	require.Equal(t, "ready as worker0 (rank 0)", worker.line())
	files := weightsFolder(t)
	call := "call -rendezvous " + url + " -to worker0 "
	for line, want := range map[string]string{
		"ping -to " + nobody:                       "ping: pipe: dial uv://" + nobody + ": connection refused",
		"ping -to " + receiverAddr:                 "ping: round trip 1 of 1000: uv://" + receiverAddr + " is not an echo: 0 payloads and 0 tensors came back, sent were 0 and 1",
		"send " + files + " -to " + echoAddr:       "send: the other end breaks the protocol of tpipe send and recv: no answer to the offer",
		"echo -listen 192.0.2.250:0":               "echo: pipe: listen: uv: listen on 192.0.2.250:0: cannot assign requested address",
		"recv -out . -listen 192.0.2.250:0":        "recv: pipe: listen: uv: listen on 192.0.2.250:0: cannot assign requested address",
		"worker -wait 200ms -rendezvous " + nobody: `worker: agent: join as worker0: store: open "tcp://` + nobody + `": JoinTimeout of 200ms exceeded: connection refused (flags: -wait)`,
		"worker -listen 0.0.0.0:0 -rendezvous " + url: "worker: agent: join as worker0: wrong configuration: listening at uv://0.0.0.0:0 admits any process that reaches it: " +
			"set Token, use TLS, or set Insecure (flags: -token-file, -tls-cert, -insecure)",
		"worker -rendezvous " + url: `worker: agent: join as worker0: group "default": name is not unique: another incarnation has the name worker0, ` +
			"with rank 0, and has not left: if it has died, remove or replace it (flags: -replace)",
		"worker -store -name worker1 -rendezvous " + url: `worker: agent: join as worker1: store: open "tcp://` + url + `": cannot listen: address already in use ` +
			"(if another process serves the store, set StoreOptions.Join, or a Rank of -1 in a dynamic group) (flags: no -store)",
		"ps -group other -rendezvous " + url: `ps: agent: inspect: group "other": no such group on the store, or its workers have not joined yet`,
		call + "aten::add": "call: agent: call aten::add on worker0: wrong arguments: aten::add: no overload takes (): " +
			`aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor: argument "self" (position 0) is missing; want Tensor; ` +
			`aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor: argument "self" (position 0) is missing; want Tensor`,
		call + "fly 1":                    "call: agent: call fly on worker0: not served: no function of that name",
		call + "aten::fly 1":              "call: agent: call aten::fly on worker0: not served: Cannot find matching operator for schema aten::fly",
		call + "-timeout 1ns aten::neg 1": "call: agent: call aten::neg on worker0: no reply within the call's limit of 1ns",
	} {
		_, stderr, code := tpipe(t, strings.Fields(line)...)
		require.Equal(t, exitFailed, code, line)
		require.Equal(t, "tpipe "+want+"\n", stderr, line)
	}
	for _, p := range []*process{echo, receiver, worker} {
		p.signal(syscall.SIGTERM)
		p.wait()
	}
}
