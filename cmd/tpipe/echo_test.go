package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func TestPingChecksEcho(t *testing.T) {
	addresses := map[string]string{"IPv4": "uv://127.0.0.1:0", "IPv6": "uv://[::1]:0", "name": "uv://localhost:0"}
	for name, listen := range race.Pick(addresses, map[string]string{"name": "uv://localhost:0"}) {
		t.Run(name, func(t *testing.T) {
			if name == "IPv6" {
				requireIPv6(t)
			}
			echo, url := startEcho(t, "-listen", listen)
			for flags, want := range map[string]string{
				"-check -count 60 -seed 7 -size 2MiB":         "60 of 60 messages came back unchanged",
				"-check -count 20 -named -size 3":             "20 of 20 messages came back unchanged",
				"-check -count 3 -payloads 0 -tensors 0":      "3 of 3 messages came back unchanged: 0 payloads, 0 tensors",
				"-count 20 -size 1MiB -payloads 2 -tensors 3": "20 of 20 round trips of 2 payloads and 3 tensors of 1 MiB",
				"-count 20 -size 8 -named":                    "20 of 20 round trips of 1 tensor of 8 B, target device named",
				"-count 1 -size 0":                            "1 of 1 round trips of 1 tensor of 0 B",
			} {
				for dialect, spoken := range map[string]string{"auto": "native", "native": "native", "compatible": "compatible"} {
					stdout, stderr, code := tpipe(t, append([]string{"ping", "-to", url, "-dialect", dialect}, strings.Fields(flags)...)...)
					require.Zero(t, code, stderr)
					require.Empty(t, stderr)
					require.Contains(t, stdout, want)
					require.Regexp(t, `dialect +`+spoken, stdout)
				}
			}
			require.Empty(t, echo.stop())
		})
	}
}

// TestPingPrintsThePath checks that a ping prints the channel, and rejected candidates only with -v
// or if no channel was found. With -json it always prints them.
func TestPingPrintsThePath(t *testing.T) {
	_, url := startEcho(t)
	for flags, want := range map[string]string{
		"":               `cpu:0 to cpu:0 +` + directly(),
		"-v":             "not channel xth",
		"-channel xth":   "tensors +no common channel\n(  not transport uv .*\n)?  not channel xth", // shm was chosen before uv
		"-channel basic": `cpu:0 to cpu:0 +basic`,
	} {
		line := append([]string{"ping", "-to", url, "-count", "1", "-tensors", "0"}, strings.Fields(flags)...)
		stdout, stderr, code := tpipe(t, line...)
		require.Zero(t, code, stderr)
		require.Regexp(t, want, stdout, flags)
		require.Equal(t, strings.Contains(want, "not "), strings.Contains(stdout, "not "), stdout)
	}
	stdout, stderr, code := tpipe(t, "ping", "-to", url, "-count", "1", "-json")
	require.Zero(t, code, stderr)
	var r pingReport
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.NotEmpty(t, r.Plan.Refused)
	for _, v := range []string{"", "-v"} {
		stdout, stderr, code := tpipe(t, strings.Fields("demo -copies 1 "+v)...)
		require.Zero(t, code, stderr)
		require.Equal(t, v != "", strings.Contains(stdout, "not channel xth"), stdout)
	}
}

func requireIPv6(t *testing.T) {
	if err := ipv6Loopback(); err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
}

// withinMachine returns the name of the transport that two processes of this machine choose by
// default.
func withinMachine() string {
	if shm.New().Viable() == nil {
		return shm.Name
	}
	return uvName
}

// directly returns the name of the channel that two processes of this machine choose by default.
func directly() string {
	if cma.New(cma.Options{}).Viable() == nil {
		return cma.Name
	}
	return "basic"
}

func TestPingJSON(t *testing.T) {
	_, url := startEcho(t)
	stdout, stderr, code := tpipe(t, "ping", "-to", url, "-json", "-count", "25", "-size", "1KiB", "-payloads", "1")
	require.Zero(t, code, stderr)
	var r pingReport
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, url, r.URL)
	require.Equal(t, 25, r.Made)
	require.Equal(t, 25*2*1024, r.Bytes)
	require.Equal(t, partCount{25, 25}, r.Sent)
	require.Equal(t, withinMachine(), r.Plan.Transport)
	require.Equal(t, []pipe.PlannedChannel{{Local: device.CPU(), Remote: device.CPU(), Channel: directly()}}, r.Plan.Channels)
	require.Positive(t, r.Latency.Min)
	require.LessOrEqual(t, r.Latency.Min, r.Latency.P50)
	require.LessOrEqual(t, r.Latency.P99, r.Latency.Max)
	require.Positive(t, r.GBps)
	require.NotContains(t, stdout, `"seed"`)

	stdout, stderr, code = tpipe(t, "ping", "-to", url, "-json", "-check", "-count", "1")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, `"seed"`)
}

// TestPingSeed checks that pings with equal seeds send equally many bytes, and pings with different
// seeds do not.
func TestPingSeed(t *testing.T) {
	_, url := startEcho(t)
	sums := map[string]int{}
	for _, seed := range []string{"5", "5", "6"} {
		stdout, stderr, code := tpipe(t, "ping", "-to", url, "-json", "-check", "-count", "20", "-seed", seed)
		require.Zero(t, code, stderr)
		var r pingReport
		require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		if bytes, known := sums[seed]; known {
			require.Equal(t, bytes, r.Bytes)
		}
		sums[seed] = r.Bytes
	}
	require.NotEqual(t, sums["5"], sums["6"])
}

func TestEchoServesManyPipes(t *testing.T) {
	echo, url := startEcho(t)
	var pings []*process
	for range 4 {
		pings = append(pings, start(t, "ping", "-to", url, "-check", "-count", "40", "-size", "256KiB"))
	}
	for _, p := range pings {
		stdout, stderr, code := p.wait()
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, "40 of 40 messages")
	}
	require.Empty(t, echo.stop())
}

// TestEchoReadsAhead checks that an echo reads and sends back many messages of a peer that writes
// all of them before it reads the first echo.
func TestEchoReadsAhead(t *testing.T) {
	_, url := startEcho(t)
	ctx := t.Context()
	p := dial(t, url)
	const messages = 40
	var ops []*pipe.WriteOp
	for i := range messages {
		ops = append(ops, p.WriteAsync(ctx, &pipe.Message{
			Metadata: []byte{byte(i)},
			Payloads: []pipe.Payload{{Data: []byte{byte(i), 1}}},
			Tensors:  []pipe.Tensor{{Buffer: device.Bytes([]byte{byte(i), 2}), TargetDevice: device.CPU()}},
		}))
	}
	for _, op := range ops {
		require.NoError(t, op.Wait(ctx))
	}
	for i := range messages {
		in, err := p.Next(ctx)
		require.NoError(t, err)
		memory := pipe.NewAllocation(in.Descriptor())
		require.NoError(t, in.Read(ctx, memory))
		data, _ := memory.Tensors[0].Contiguous()
		require.Equal(t, []byte{byte(i)}, in.Descriptor().Metadata)
		require.Equal(t, []byte{byte(i), 1}, memory.Payloads[0])
		require.Equal(t, []byte{byte(i), 2}, data)
	}
}

func dial(t *testing.T, url string) *pipe.Pipe {
	t.Helper()
	c, err := tensorpipe.NewContext(pipe.Options{Name: "test"})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	p, err := c.Dial(t.Context(), url)
	require.NoError(t, err)
	return p
}

// TestEchoReportsBadPeers checks that an echo disconnects and reports a peer that speaks another
// protocol and one whose message is too long, and that it then serves other peers.
func TestEchoReportsBadPeers(t *testing.T) {
	echo, url := startEcho(t, "-limit", "100KiB")
	garbage, err := net.Dial("tcp", strings.TrimPrefix(url, "uv://"))
	require.NoError(t, err)
	defer garbage.Close()
	_, err = garbage.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	_, err = garbage.Read(make([]byte, 1))
	require.Error(t, err, "the echo hangs up")

	_, stderr, code := tpipe(t, "ping", "-to", url, "-count", "1", "-size", "101KiB")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, strings.TrimPrefix(url, "uv://"))

	_, stderr, code = tpipe(t, "ping", "-to", url, "-count", "1", "-size", "100KiB")
	require.Zero(t, code, stderr)
	log := echo.stop()
	require.Contains(t, log, "handshake failed")
	require.Contains(t, log, "message of 101 KiB, the -limit is 100 KiB")
	require.Contains(t, log, "tpipe ping", "the name of the peer")
	require.Equal(t, 2, strings.Count(log, "\n"), log)
}

func TestEchoPortInUse(t *testing.T) {
	_, url := startEcho(t)
	_, stderr, code := tpipe(t, "echo", "-listen", url)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "address already in use")
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
}

// endlessPing starts a ping to url, with the further arguments args, that runs until it is ended, and
// returns it once its end of the pipe is open.
func endlessPing(t *testing.T, url string, args ...string) *process {
	p := start(t, append([]string{"ping", "-to", url, "-count", "10000000", "-size", "100KiB"}, args...)...)
	p.lineWith("cpu:0 to cpu:0")
	return p
}

func TestEchoKilled(t *testing.T) {
	echo, url := startEcho(t)
	sibling := start(t, "echo") // stays alive: it must not inherit sockets of the one that dies
	ping := endlessPing(t, url)
	echo.kill()
	stdout, stderr, code := ping.wait()
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, strings.TrimPrefix(url, "uv://"))
	require.Contains(t, stderr, "lost the peer")
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	require.Contains(t, stdout, "of 10000000 round trips")
	sibling.kill()
}

func TestEchoStoppedInTheMiddle(t *testing.T) {
	authority := newAuthority(t)
	cert, key := authority.member(t, "echo", true)
	for _, s := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		echo, url := startEcho(t, "-tls-cert", cert, "-tls-key", key)
		ping := endlessPing(t, url, "-tls-ca", authority.file)
		echo.stderr.await(t, "pipe opened") // only with TLS; until then the end of the echo loses the ping
		echo.signal(s)
		_, stderr, code := echo.wait()
		require.Zero(t, code, stderr)
		_, stderr, code = ping.wait()
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "peer closed the pipe")
	}
}

func TestPingInterrupted(t *testing.T) {
	echo, url := startEcho(t)
	for _, s := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		ping := endlessPing(t, url)
		ping.signal(s)
		stdout, stderr, code := ping.wait()
		require.Equal(t, exitInterrupted, code)
		require.Equal(t, "tpipe ping: interrupted\n", stderr)
		require.Contains(t, stdout, "of 10000000 round trips")
	}
	_, stderr, code := tpipe(t, "ping", "-to", url, "-count", "10")
	require.Zero(t, code, stderr)
	echo.signal(syscall.SIGTERM)
	_, _, code = echo.wait()
	require.Zero(t, code)
}

// TestPingAgainstOthers checks that a ping fails with the reason if the peer does not answer, or
// sends back a message that differs from the one sent in any way.
func TestPingAgainstOthers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	_, stderr, code := tpipe(t, "ping", "-to", "uv://"+silent.Addr().String(), "-timeout", "100ms")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "handshake timed out")

	t.Run("silence", func(t *testing.T) {
		url := falseEcho(t, func(*pipe.Message) *pipe.Message { return nil })
		_, stderr, code := tpipe(t, "ping", "-to", url, "-timeout", "5s")
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "no answer within 5s")
	})
	for what, c := range map[string]struct {
		reply func(m *pipe.Message) *pipe.Message
		want  string
	}{
		"a byte":        {func(m *pipe.Message) *pipe.Message { m.Payloads[0].Data[1] ^= 1; return m }, "payload 0: byte 1 of 2 came back as"},
		"a tensor byte": {func(m *pipe.Message) *pipe.Message { buffer(m)[0] ^= 1; return m }, "tensor 0: byte 0 of 2 came back as"},
		"metadata":      {func(m *pipe.Message) *pipe.Message { m.Metadata = append(m.Metadata, 'x'); return m }, "is not an echo: metadata"},
		"part metadata": {func(m *pipe.Message) *pipe.Message { m.Tensors[0].Metadata = []byte("no"); return m }, "is not an echo: tensor 0: metadata"},
		"fewer tensors": {func(m *pipe.Message) *pipe.Message { m.Tensors = nil; return m }, "1 payloads and 0 tensors came back"},
		"length":        {func(m *pipe.Message) *pipe.Message { m.Payloads[0].Data = nil; return m }, "payload 0: 0 bytes came back, sent were 2"},
		"target": {func(m *pipe.Message) *pipe.Message { m.Tensors[0].TargetDevice = device.Device{}; return m },
			"it came back from cpu:0 for any, sent was from cpu:0 for cpu:0"},
	} {
		t.Run(what, func(t *testing.T) {
			url := falseEcho(t, c.reply)
			stdout, stderr, code := tpipe(t, "ping", "-to", url, "-check", "-named", "-count", "1",
				"-payloads", "1", "-tensors", "1", "-size", "2", "-seed", seedOfOneEach)
			require.Equal(t, exitFailed, code, stdout)
			require.Contains(t, stderr, c.want)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		})
	}
}

// seedOfOneEach is a seed with which the flags above generate a first message of one payload
// and one tensor of 2 bytes each.
const seedOfOneEach = "4"

func buffer(m *pipe.Message) []byte {
	data, _ := m.Tensors[0].Buffer.Contiguous()
	return data
}

// falseEcho listens at the returned URL, accepts one pipe, and answers its first message with the
// message that reply returns for it. If reply returns nil it does not answer.
func falseEcho(t *testing.T, reply func(*pipe.Message) *pipe.Message) (url string) {
	t.Helper()
	c, err := tensorpipe.NewContext(pipe.Options{})
	require.NoError(t, err)
	l, err := c.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- lie(t, l, reply) }()
	t.Cleanup(func() {
		c.Close()
		if err := <-done; !errors.Is(err, pipe.ErrClosed) && !errors.Is(err, pipe.ErrPeerClosed) {
			require.NoError(t, err)
		}
	})
	return l.URLs()[0]
}

func lie(t *testing.T, l *pipe.Listener, reply func(*pipe.Message) *pipe.Message) error {
	ctx := t.Context()
	p, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	in, err := p.Next(ctx)
	if err != nil {
		return err
	}
	copied, err := newPooledMessage(tensor.Heap{}, in.Descriptor())
	if err != nil {
		return err
	}
	if err := in.Read(ctx, copied.memory); err != nil {
		return err
	}
	if m := reply(copied.message); m != nil {
		return p.Write(ctx, m)
	}
	return nil
}
