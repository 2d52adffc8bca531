package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestBadCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"dance":                                  `unknown command "dance" (tpipe help lists them)`,
		"help dance":                             `no page for "dance" (tpipe help lists the commands)`,
		"help ping echo":                         `no page for "ping echo"`,
		"ping":                                   "-to is missing: give the address of a tpipe echo such as 127.0.0.1:7000",
		"ping -to 127.0.0.1":                     `-to: uv: bad address "127.0.0.1": no port to dial`,
		"ping -to uv://127.0.0.1":                `-to: uv: bad address "127.0.0.1": no port to dial`,
		"ping -to localhost:0":                   `-to: uv: bad address "localhost:0": no port to dial`,
		"probe -to 127.0.0.1":                    `-to: uv: bad address "127.0.0.1": no port to dial`,
		"send testdata -to 127.0.0.1":            `-to: uv: bad address "127.0.0.1": no port to dial`,
		"ping -to ://x":                          `-to: bad url: "://x" has no scheme`,
		"ping -to uv://127.0.0.1:1 more":         `"more" is not a flag (tpipe help ping explains)`,
		"ping -frobnicate":                       "flag provided but not defined: -frobnicate (tpipe help ping explains)",
		"ping -count":                            "flag needs an argument: -count",
		"ping -to uv://127.0.0.1:1 -count 0":     "-count 0: want 1 to 10000000",
		"ping -to uv://127.0.0.1:1 -count x":     `invalid value "x" for flag -count`,
		"ping -to uv://127.0.0.1:1 -size 12kB":   "want a number of bytes such as 4096, 64KiB",
		"ping -to uv://127.0.0.1:1 -size 9TiB":   "want a number of bytes such as 4096, 64KiB",
		"ping -to uv://127.0.0.1:1 -size 2GiB":   "-size 2 GiB: 1 part of that size would exceed the -limit of 1 GiB for a message; raise -limit here and at the echo",
		"ping -to uv://127.0.0.1:1 -tensors -1":  `invalid value "-1" for flag -tensors: want 0 to 65536`,
		"ping -to uv://127.0.0.1:1 -payloads x":  `invalid value "x" for flag -payloads`,
		"ping -to uv://127.0.0.1:1 -timeout 0s":  "-timeout 0s: want more than 0",
		"ping -to uv://127.0.0.1:1 -channel shm": `-channel: there is no channel "shm", only `,
		"ping -to uv://h:1 -transport ,":         `-transport: there is no transport "", only uv`,
		"echo -channel basic,ib":                 `-channel: there is no channel "ib", only `,
		"echo -transport uv,udp":                 `-transport: there is no transport "udp", only `,
		"ping -to uv://h:1 -lanes 0":             "-lanes 0: want 1 to 128",
		"echo -lanes 129":                        "-lanes 129: want 1 to 128",
		"probe -lanes two":                       `invalid value "two" for flag -lanes`,
		"probe -channel ib":                      `-channel: there is no channel "ib", only `,
		"ping -to uv://h:1 -dialect latin":       `-dialect "latin": want auto, compatible or native`,
		"send a -to h:1 -dialect latin":          `-dialect "latin": want auto, compatible or native`,
		"send":                                   "-to is missing: give the address of a tpipe recv such as 127.0.0.1:7000",
		"send a":                                 "-to is missing",
		"send -to h:1":                           "nothing to send: name files or folders",
		"send a -to h:1 -timeout 0s":             "-timeout 0s: want more than 0",
		"send testdata -to h:99999":              `-to: uv: bad address "h:99999": the port is not one of 0..65535`,
		"send testdata -to ibv://h":              `-to: bad url: no transport "ibv" is registered`,
		"send testdata -to h:1 -tls-cert x":      "-tls-cert and -tls-key belong together: give both",
		"recv":                                   "-out is missing: name the directory to receive into",
		"recv -out . more":                       `"more" is not a flag (tpipe help recv explains)`,
		"recv -out . -listen h:x":                `-listen: uv: bad address "h:x": the port is not one of 0..65535`,
		"recv -out . -max-bytes 0":               "-max-bytes 0 B: want more than 0",
		"recv -out . -memory 1MiB":               "-memory 1 MiB: want 4MiB or more",
		"send a -to h:1 -memory 0":               "-memory 0 B: want 4MiB or more",
		"recv -out . -max-senders 0":             "-max-senders 0: want 1 or more",
		"recv -out . -max-senders -1":            "-max-senders -1: want 1 or more",
		"recv -out . -stall-timeout 0":           "-stall-timeout 0s: want 1s or more",
		"recv -out . -stall-timeout -30s":        "-stall-timeout -30s: want 1s or more",
		"recv -out . -stall-timeout 999ms":       "-stall-timeout 999ms: want 1s or more",
		"recv -out . -stall-timeout soon":        `invalid value "soon" for flag -stall-timeout`,
		"recv -out . -tls-key x":                 "-tls-cert and -tls-key belong together: give both",
		"recv -out . -tls-ca x":                  "-tls-ca: a listener with TLS needs -tls-cert and -tls-key too",
		"recv -out . -tls":                       "flag provided but not defined: -tls ",
		"echo -limit many":                       `invalid value "many" for flag -limit`,
		"demo -copies 0":                         "-copies 0: want 1 to 10000000",
		"probe now":                              `"now" is not a flag`,
		"version now":                            `"now" is not a flag`,
		"completion":                             "name one shell: bash, fish, zsh",
		"completion sh":                          "name one shell: bash, fish, zsh",
		"completion bash zsh":                    "name one shell: bash, fish, zsh",
		"call -to w aten::add 1 alpha=2 alpha=3": "argument alpha is given twice",
		"probe -dialect latin":                   `-dialect "latin": want auto, compatible or native`,
		"probe -dialect native":                  "-dialect applies to the pipe to a peer: name one with -to",
		"probe -lanes 0":                         "-lanes 0: want 1 to 128",
		"probe -tls":                             "the flags for TLS apply to the pipe to a peer: name one with -to",
		"probe -tls-ca /nothing -transport uv":   "the flags for TLS apply to the pipe to a peer: name one with -to",
		"probe -tls-name here -json":             "the flags for TLS apply to the pipe to a peer: name one with -to",
		"probe -to uv://h:1 -dialect latin":      `-dialect "latin": want auto, compatible or native`,
		"worker -world 2 -rank 0 -replace":       "-replace: workers of a static group cannot be replaced",
		"ping -to ibv://here":                    `-to: bad url: no transport "ibv" is registered`,
		"ping -to uv://":                         `-to: uv: bad address ""`,
		"ping -to uv://127.0.0.1:99999":          `-to: uv: bad address "127.0.0.1:99999": the port is not one of 0..65535`,
		"ping -to uv://[::1:80":                  `-to: uv: bad address "[::1:80"`,
		"ping -to uv://:80":                      "-to: uv: bad address \":80\": no host to dial",
		"ping -to uv://127.0.0.1:1/x":            `-to: uv: bad address "127.0.0.1:1/x"`,
		"echo -listen uv://127.0.0.1:99999":      "-listen: uv: bad address \"127.0.0.1:99999\": the port is not one of 0..65535",
		"echo -listen uv://127.0.0.1:x":          "the port is not one of 0..65535",
		"echo -listen ibv://a":                   `-listen: bad url: no transport "ibv" is registered`,
		"echo -listen uv://127.0.0.1:0,":         `-listen: bad url: "" has no scheme`,
		"echo -listen 127.0.0.1:0,x":             `-listen: bad url: "uv://x" is a second one for transport uv`,
		"worker -rendezvous 127.0.0.1":           "-rendezvous 127.0.0.1: bad url: want host:port, with a port from 1 to 65535",
		"worker -rendezvous tcp://127.0.0.1:0":   "-rendezvous tcp://127.0.0.1:0: bad url: want host:port, with a port from 1 to 65535",
		"worker -rendezvous http://h:1":          "-rendezvous http://h:1: bad url: http:// is none of tcp, env, file and mem",
		"worker -rendezvous h:1 -wait 0s":        "-wait 0s: want more than 0",
		"call -to w f -rendezvous h":             "-rendezvous h: bad url: want host:port, with a port from 1 to 65535",
		"echo -listen uv://127.0.0.1:0,uv://x":   `-listen: bad url: "uv://x" is a second one for transport uv`,
	} {
		stdout, stderr, code := tpipe(t, strings.Fields(line)...)
		require.Equal(t, exitUsage, code, line)
		require.Empty(t, stdout, line)
		require.Contains(t, stderr, want, line)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.True(t, strings.HasPrefix(stderr, "tpipe"), stderr)
	}
}

func TestFailures(t *testing.T) {
	for line, want := range map[string]string{
		"ping -to uv://127.0.0.1:1":                      "connection refused",
		"echo -listen no.such.invalid":                   "no.such.invalid",
		"ping -to uv://no.such.invalid:80":               "no.such.invalid",
		"echo -listen uv://192.0.2.250:0":                "192.0.2.250",
		"send nothing -to 127.0.0.1:1":                   "nothing: no such file or directory",
		"send main.go -to 127.0.0.1:1":                   "main.go: is no *.safetensors",
		"recv -out nowhere":                              "-out: open nowhere: no such file or directory",
		"recv -out main.go":                              "-out: open main.go: not a directory",
		"recv -out . -listen 192.0.2.250:0":              "192.0.2.250",
		"recv -out . -tls-cert main.go -tls-key main.go": "-tls-cert main.go, -tls-key main.go: tls: failed to find any PEM data",
		"ping -to uv://h:1 -tls-ca main.go":              "-tls-ca main.go: no certificate in PEM form",
		"ping -to uv://h:1 -tls-ca nothing":              "-tls-ca: open nothing: no such file or directory",
	} {
		stdout, stderr, code := tpipe(t, strings.Fields(line)...)
		require.Equal(t, exitFailed, code, line)
		require.Empty(t, stdout, line)
		require.Contains(t, stderr, want, line)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
}

// TestOnlyTheUserIsBlamed checks that flagError makes a bad address of a flag a usage error, but
// not a bad address that the peer has sent in the handshake, nor other errors.
func TestOnlyTheUserIsBlamed(t *testing.T) {
	bad := &uv.AddrError{Addr: "x:y", Reason: "no"}
	err := flagError("to", &pipe.Error{Op: "dial", Err: bad})
	require.EqualError(t, err, `-to: uv: bad address "x:y": no`)
	require.Equal(t, exitUsage, exitCode(err))
	for _, err := range []error{
		&pipe.Error{Op: "dial", Err: fmt.Errorf("%w: %w", pipe.ErrHandshake, bad)},
		&pipe.Error{Op: "dial", Err: pipe.ErrPeerLost},
	} {
		require.Equal(t, err, flagError("to", err))
		require.Equal(t, exitFailed, exitCode(flagError("to", err)))
	}
}

func TestHelp(t *testing.T) {
	overview, stderr, code := tpipe(t, "help")
	require.Zero(t, code, stderr)
	stdout, stderr, code := tpipe(t)
	require.Equal(t, exitUsage, code)
	require.Empty(t, stdout)
	require.Equal(t, overview, stderr, "a command is missing, that is all there is to say")
	for _, e := range entries {
		require.Equal(t, !e.hidden, strings.Contains(overview, "\n  "+e.name+" "), e.name)
		page, stderr, code := tpipe(t, "help", e.name)
		require.Zero(t, code, stderr)
		require.Contains(t, page, "usage: tpipe "+e.name)
		require.Contains(t, page, e.help)
		for _, flag := range []string{"-h", "-help", "--help"} {
			same, _, code := tpipe(t, e.name, flag)
			require.Zero(t, code)
			require.Equal(t, page, same)
		}
	}
	all := catalog(torchLanes)
	for _, name := range append(transportNames(all), channelNames(all)...) {
		require.Regexp(t, `\n  `+name+` +\w`, overview, "each transport and channel is explained in a line")
	}
	for _, word := range []string{"-h", "-help", "--help"} {
		same, _, code := tpipe(t, word)
		require.Zero(t, code)
		require.Equal(t, overview, same)
	}
}

func TestProbe(t *testing.T) {
	text, stderr, code := tpipe(t, "probe")
	require.Zero(t, code, stderr)
	out, stderr, code := tpipe(t, "probe", "-json")
	require.Zero(t, code, stderr)
	var f findings
	require.NoError(t, json.Unmarshal([]byte(out), &f))

	works := map[string]bool{}
	for _, group := range [][]finding{f.Transports, f.Channels, f.Dialects, f.Machine} {
		require.NotEmpty(t, group)
		for _, one := range group {
			works[one.Name] = one.Works
			require.NotEmpty(t, one.Detail, one.Name)
			require.Contains(t, text, one.Name)
			require.Contains(t, text, one.Detail)
		}
	}
	for name, want := range map[string]bool{"uv": true, "basic": true, "compatible": true, "native": true, "system": true} {
		got, found := works[name]
		require.True(t, found, name)
		require.Equal(t, want, got, name)
	}
	require.Equal(t, ipv6Loopback() == nil, works["IPv6 loopback"])
}

// TestFullDisk checks that commands exit with exitFailed and an error if their output cannot be
// written.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no device that is always full: %v", err)
	}
	defer full.Close()
	_, url := startEcho(t)
	for _, line := range []string{"probe", "probe -json", "demo -copies 1", "echo", "ping -count 1 -to " + url, "ping -json -count 1 -to " + url} {
		name, _, _ := strings.Cut(line, " ")
		var stderr strings.Builder
		cmd := program(t, strings.Fields(line)...)
		cmd.Stdout, cmd.Stderr = full, &stderr
		require.Error(t, cmd.Run(), line)
		require.Equal(t, exitFailed, cmd.ProcessState.ExitCode(), line)
		require.Equal(t, "tpipe "+name+": write /dev/stdout: no space left on device\n", stderr.String())
	}
}

func TestTransparentHugePages(t *testing.T) {
	for text, want := range map[string]string{"[always] madvise never\n": "always", "always [madvise] never\n": "madvise (large tensors request them)"} {
		got, err := hugePagesFrom(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"always madvise [never]\n", "", "[", "nonsense"} {
		_, err := hugePagesFrom(text)
		require.Error(t, err, text)
	}
}

func TestOnlyTerminalsShowProgress(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	require.False(t, isTerminal(file))
	require.False(t, isTerminal(null))
	require.False(t, isTerminal(&strings.Builder{}))

	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := progress{w: &out, total: 10}
		p.at(3)
		p.at(4)
		require.Equal(t, "\r3 of 10", out.String())
		p.shown = p.shown.Add(-refresh)
		p.at(5)
		require.Equal(t, "\r3 of 10\r5 of 10", out.String())
		p.clear()
		require.True(t, strings.HasSuffix(out.String(), "\r\x1b[K"))
	})
	hidden := newProgress(file, 10)
	hidden.at(3)
	hidden.clear()
}

// TestSendWithoutReceiver checks that send fails after its -timeout, with the reason, if no receiver
// listens.
func TestSendWithoutReceiver(t *testing.T) {
	stdout, stderr, code := tpipe(t, "send", "testdata", "-to", "127.0.0.1:1", "-timeout", "100ms")
	require.Equal(t, exitFailed, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "connection refused")
}
