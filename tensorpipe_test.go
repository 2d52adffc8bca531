package tensorpipe_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

func TestMain(m *testing.M) {
	if urls := os.Getenv(asEcho); urls != "" {
		fmt.Fprintln(os.Stderr, serveEcho(strings.Split(urls, " ")))
		os.Exit(1)
	}
	leakcheck.Main(m)
}

// priorities returns the priorities in p by kind and name, such as "channel basic".
func priorities(p tensorpipe.Profile) map[string]int {
	out := map[string]int{}
	for _, e := range p.Transports {
		out["transport "+e.Name] = e.Priority
	}
	for _, e := range p.Channels {
		out["channel "+e.Name] = e.Priority
	}
	return out
}

// TestTorchProfile checks that TorchProfile has PyTorch's transports, channels and priorities. A
// C++ peer compares the chosen path with its own choice, so they must be the same.
func TestTorchProfile(t *testing.T) {
	want := map[string]int{"transport uv": 0, "transport shm": 200, "channel basic": 1000, "channel mpt_uv": 1100, "channel cma": 1200}
	require.Equal(t, want, priorities(tensorpipe.TorchProfile()))
}

func TestDefaultProfile(t *testing.T) {
	want := priorities(tensorpipe.TorchProfile())
	want["channel xth"] = 1300
	require.Equal(t, want, priorities(tensorpipe.DefaultProfile()))
}

// TestDefaultProfileWithinProcess checks that with the default profile a pipe within one process
// uses the channel xth, which copies a tensor once.
func TestDefaultProfileWithinProcess(t *testing.T) {
	if err := xth.New().Viable(); err != nil {
		t.Skip(err)
	}
	c, err := tensorpipe.NewContext(pipe.Options{})
	require.NoError(t, err)
	defer c.Close()
	l, err := c.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	p, err := c.Dial(t.Context(), l.URLs()[0])
	require.NoError(t, err)
	name, found := p.Plan().Channel(device.CPU(), device.CPU())
	require.True(t, found)
	require.Equal(t, "xth", name)
}

// TestTorchProfileCopiesDirectly checks that with PyTorch's profile a pipe on one machine uses the
// channel cma, in both dialects and over both TCP and shared memory.
func TestTorchProfileCopiesDirectly(t *testing.T) {
	if err := cma.New(cma.Options{}).Viable(); err != nil {
		t.Skip(err)
	}
	for _, dialect := range []pipe.Dialect{pipe.DialectNative, pipe.DialectCompatible} {
		for _, url := range []string{"uv://127.0.0.1:0", "shm://"} {
			c, err := tensorpipe.TorchProfile().NewContext(pipe.Options{Dialect: dialect})
			require.NoError(t, err)
			l, err := c.Listen(t.Context(), url)
			require.NoError(t, err)
			one, err := c.Dial(t.Context(), l.URLs()[0])
			require.NoError(t, err)
			other, err := l.Accept(t.Context())
			require.NoError(t, err)
			name, _ := one.Plan().Channel(device.CPU(), device.CPU())
			require.Equal(t, "cma", name)
			sendTensor(t, one, other)
			sendTensor(t, other, one)
			require.NoError(t, c.Close())
		}
	}
}

// TestDefaultProfileSwitchesToSharedMemory checks that with the default profile a pipe that is
// dialled over TCP uses shared memory, in both dialects, and both plans have the reason why mpt is
// not used.
func TestDefaultProfileSwitchesToSharedMemory(t *testing.T) {
	if err := shm.New().Viable(); err != nil {
		t.Skip(err)
	}
	for _, dialect := range []pipe.Dialect{pipe.DialectNative, pipe.DialectCompatible} {
		t.Run(string(dialect), func(t *testing.T) {
			c, err := tensorpipe.NewContext(pipe.Options{Dialect: dialect})
			require.NoError(t, err)
			defer c.Close()
			l, err := c.Listen(t.Context(), "uv://127.0.0.1:0", "shm://")
			require.NoError(t, err)
			p, err := c.Dial(t.Context(), l.URLs()[0])
			require.NoError(t, err)
			other, err := l.Accept(t.Context())
			require.NoError(t, err)
			for _, end := range []*pipe.Pipe{p, other} {
				require.Equal(t, "shm", end.Plan().Transport)
				require.Equal(t, dialect, end.Plan().Dialect)
				require.Contains(t, end.Plan().String(), "mpt is not supported: the lanes are for pipes in the domain")
			}
			require.NoError(t, p.Write(t.Context(), &pipe.Message{Metadata: []byte("over shared memory")}))
			in, err := other.Next(t.Context())
			require.NoError(t, err)
			require.Equal(t, "over shared memory", string(in.Descriptor().Metadata))
		})
	}
}

func TestProfilesAreIndependent(t *testing.T) {
	p := tensorpipe.DefaultProfile()
	p.Transports[0].Name = "changed"
	require.NotEqual(t, p.Transports[0].Name, tensorpipe.DefaultProfile().Transports[0].Name)
}

func TestNewContextUsesProfile(t *testing.T) {
	network := mem.New(nil)
	own := []pipe.TransportEntry{{Name: "mem", Priority: 1, Transport: network}}
	for what, c := range map[string]struct {
		options   pipe.Options
		reachable string // a URL that can be listened on
		missing   string // one that cannot
	}{
		"nothing":        {pipe.Options{}, "uv://127.0.0.1:0", "mem://a"},
		"own transports": {pipe.Options{Transports: own}, "mem://a", "uv://127.0.0.1:0"},
		"own channels":   {pipe.Options{Channels: []pipe.ChannelEntry{{Name: "mine", Factory: basic.New()}}}, "uv://127.0.0.1:0", "mem://a"},
	} {
		t.Run(what, func(t *testing.T) {
			ctx, err := tensorpipe.NewContext(c.options)
			require.NoError(t, err)
			defer ctx.Close()
			_, err = ctx.Listen(t.Context(), c.reachable)
			require.NoError(t, err)
			_, err = ctx.Listen(t.Context(), c.missing)
			require.ErrorContains(t, err, "no transport")
		})
	}
}

func TestNewContextKeepsEmptyLists(t *testing.T) {
	_, err := tensorpipe.NewContext(pipe.Options{Transports: []pipe.TransportEntry{}})
	require.Error(t, err, "a context needs a transport")

	c, err := tensorpipe.NewContext(pipe.Options{Channels: []pipe.ChannelEntry{}})
	require.NoError(t, err)
	defer c.Close()
	l, err := c.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	p, err := c.Dial(t.Context(), l.URLs()[0])
	require.NoError(t, err)
	require.Empty(t, p.Plan().Channels)
}

func TestNewContextRejectsInvalidOptions(t *testing.T) {
	_, err := tensorpipe.NewContext(pipe.Options{Channels: []pipe.ChannelEntry{{Name: "", Factory: basic.New()}}})
	require.Error(t, err)
}
