package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

func TestDemo(t *testing.T) {
	stdout, stderr, code := tpipe(t, "demo", "-copies", "5")
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	require.Regexp(t, `dialect +native\n +transport +uv\n`, stdout)
	for _, want := range []string{"stage0.weight", "[128, 64]", "5 copies of 4 tensors", "every checksum right"} {
		require.Contains(t, stdout, want)
	}
}

func TestDemoJSON(t *testing.T) {
	stdout, stderr, code := tpipe(t, "demo", "-json")
	require.Zero(t, code, stderr)
	var r demoReport
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Len(t, r.Tensors, 4)
	require.Equal(t, tensorNote{"stage1.bias", "f32", []int{10}, r.Tensors[2].SHA256}, r.Tensors[2])
	require.NotEqual(t, r.Sender, r.Receiver)
	require.Equal(t, 100*38440, r.Bytes)
	require.Equal(t, pipe.DialectNative, r.Plan.Dialect)
	require.Positive(t, r.Seconds)
	requireClosed(t, r.URL)
}

// requireClosed waits until no listener accepts TCP connections at url, and fails the test after
// processTimeout. A connection that a closing listener still accepts must break.
func requireClosed(t *testing.T, url string) {
	t.Helper()
	for begun := time.Now(); ; {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "uv://"))
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		require.Less(t, time.Since(begun), processTimeout, "somebody still listens")
		if err != nil {
			require.ErrorIs(t, err, syscall.ECONNRESET)
			continue
		}
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.NoError(t, conn.Close())
	}
}

var headline = regexp.MustCompile(`^process (\d+) sends to process (\d+) at (uv://\S+)$`)

// endlessDemo starts a demo that runs until it is ended. It returns the demo, the process id of its
// receiver and the receiver's URL.
func endlessDemo(t *testing.T) (p *process, receiver int, url string) {
	t.Helper()
	p = start(t, "demo", "-copies", "10000000")
	found := headline.FindStringSubmatch(p.line())
	require.Len(t, found, 4)
	receiver, err := strconv.Atoi(found[2])
	require.NoError(t, err)
	return p, receiver, found[3]
}

// TestDemoLeavesNoReceiver checks that the receiver of a demo exits when the sender is interrupted,
// terminated or killed.
func TestDemoLeavesNoReceiver(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			p, _, url := endlessDemo(t)
			p.signal(s)
			_, stderr, code := p.wait()
			if s == syscall.SIGKILL {
				require.Equal(t, -1, code)
			} else {
				require.Equal(t, exitInterrupted, code)
				require.Equal(t, "tpipe demo: interrupted\n", stderr)
			}
			requireClosed(t, url)
		})
	}
}

func TestDemoLosesReceiver(t *testing.T) {
	p, receiver, _ := endlessDemo(t)
	other, err := os.FindProcess(receiver)
	require.NoError(t, err)
	require.NoError(t, other.Kill())
	_, stderr, code := p.wait()
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "lost the peer")
	require.Contains(t, stderr, "second process: signal: killed")
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
}

// TestReceiverFindsFaults checks that the receiver's report names the fault for each kind of damage
// to a message, and no fault for an undamaged one or one in another order.
func TestReceiverFindsFaults(t *testing.T) {
	arrive := func(damage func(m *pipe.Message)) receiverReport {
		w, err := loadWeights(weightsFile)
		require.NoError(t, err)
		m, err := w.message(true)
		require.NoError(t, err)
		damage(m)
		d := &pipe.Descriptor{Metadata: m.Metadata}
		var memory pipe.Allocation
		for _, one := range m.Tensors {
			d.Tensors = append(d.Tensors, pipe.TensorDescriptor{Length: one.Buffer.Len(), Metadata: one.Metadata})
			memory.Tensors = append(memory.Tensors, one.Buffer)
		}
		var r receiverReport
		r.check(d, memory)
		return r
	}
	require.Equal(t, receiverReport{Copies: 1, Tensors: 4}, arrive(func(*pipe.Message) {}))
	for what, c := range map[string]struct {
		damage func(m *pipe.Message)
		want   string
	}{
		"byte":        {func(m *pipe.Message) { buffer(m)[7] ^= 1 }, `copy 1: tensor "stage0.bias": it has sha256`},
		"missing":     {func(m *pipe.Message) { m.Tensors = m.Tensors[1:] }, "copy 1: the file written from them has sha256"},
		"exchanged":   {func(m *pipe.Message) { m.Tensors[0], m.Tensors[1] = m.Tensors[1], m.Tensors[0] }, ""},
		"note":        {func(m *pipe.Message) { m.Tensors[2].Metadata = []byte("{") }, "copy 1: metadata of tensor 2"},
		"note of all": {func(m *pipe.Message) { m.Metadata = nil }, "copy 1: unexpected end"},
		"shape":       {rename(`"shape":[128]`, `"shape":[64]`), `copy 1: tensor "stage0.bias"`},
		"dtype":       {rename(`"f32"`, `"f33"`), `copy 1: tensor "stage0.bias"`},
		"other dtype": {rename(`"f32"`, `"i32"`), "copy 1: the file written from them"},
		"name":        {rename("stage0.bias", "stage2.bias"), "copy 1: the file written from them"},
		"short":       {func(m *pipe.Message) { m.Tensors[0].Buffer = device.Bytes(nil) }, `copy 1: tensor "stage0.bias"`},
	} {
		r := arrive(c.damage)
		require.Contains(t, r.Fault, c.want, what)
		require.Equal(t, c.want == "", r.Fault == "", what)
	}
}

// rename returns a function that replaces the first occurrence of from by to in the metadata of a
// message's first tensor.
func rename(from, to string) func(*pipe.Message) {
	return func(m *pipe.Message) {
		m.Tensors[0].Metadata = []byte(strings.Replace(string(m.Tensors[0].Metadata), from, to, 1))
	}
}

func TestReportIsVerified(t *testing.T) {
	w, err := loadWeights(weightsFile)
	require.NoError(t, err)
	require.NoError(t, (&receiverReport{Copies: 3, Tensors: 4}).verifySent(w, 3))
	for want, r := range map[string]receiverReport{
		"the receiver reports: copy 2: bad":      {Copies: 2, Tensors: 4, Fault: "copy 2: bad"},
		"the receiver got 2 copies of 4 tensors": {Copies: 2, Tensors: 4},
		"the receiver got 3 copies of 1 tensors": {Copies: 3, Tensors: 1},
	} {
		require.ErrorContains(t, r.verifySent(w, 3), want)
	}
}

func TestWeightsMustBeAFile(t *testing.T) {
	_, err := loadWeights([]byte("no such thing"))
	require.Error(t, err)
}
