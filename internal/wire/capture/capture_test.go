package capture

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestLoadAll(t *testing.T) {
	// Connections, and all bytes of frames with their lengths, as the text
	// form of the recordings counts them.
	want := map[string]struct{ conns, bytes int }{
		"all":      {1, 323 + 228},
		"basic":    {3, 251 + 165 + 33 + 46 + 20 + 17},
		"cma":      {4, 324 + 242 + 33 + 57 + 21 + 20 + 16 + 22},
		"mpt":      {5, 260 + 176 + 33 + 13 + 54 + 38 + 37 + 20 + 13 + 12},
		"mptbasic": {6, 287 + 181 + 33 + 13 + 74 + 20 + 34 + 35 + 35 + 11 + 11 + 11},
		"xth":      {4, 299 + 217 + 33 + 51 + 21 + 20 + 16 + 19},
	}
	paths, err := filepath.Glob("../testdata/*.json")
	require.NoError(t, err)
	require.Len(t, paths, len(want))
	for _, path := range paths {
		name := filepath.Base(path[:len(path)-len(".json")])
		c, err := Load(path)
		require.NoError(t, err, name)
		require.Len(t, c.Connections, want[name].conns, name)
		require.Equal(t, want[name].bytes, size(c), name)
		require.Equal(t, c.Connections, replay(c), name)
	}
}

func size(c *Capture) (n int) {
	for _, e := range c.Events {
		if !e.End {
			n += 8 + len(e.Frame)
		}
	}
	return n
}

// replay returns the connections of c, built from its events alone.
func replay(c *Capture) []Connection {
	conns := make([]Connection, len(c.Connections))
	for i := range conns {
		conns[i].Listener = c.Connections[i].Listener
	}
	for _, e := range c.Events {
		switch conn := &conns[e.Conn]; {
		case e.End:
		case e.Dir == ToServer:
			conn.ToServer = append(conn.ToServer, e.Frame)
		default:
			conn.ToClient = append(conn.ToClient, e.Frame)
		}
	}
	return conns
}

func TestParse(t *testing.T) {
	c, err := Parse([]byte(`{"addrs": ["a", "b"], "log": [
		[0.1, 1, 1, "C>S", "0200000000000000"],
		[0.2, 0, 0, "C>S", "00000000000000000100000000000000aa"],
		[0.3, 1, 1, "S>C", "0100000000000000bb"],
		[0.4, 1, 1, "C>S", "ccdd"],
		[0.5, 1, 1, "C>S", ""]]}`))
	require.NoError(t, err)
	require.Equal(t, &Capture{
		Listeners: []string{"a", "b"},
		Connections: []Connection{
			{Listener: 0, ToServer: [][]byte{{}, {0xaa}}},
			{Listener: 1, ToServer: [][]byte{{0xcc, 0xdd}}, ToClient: [][]byte{{0xbb}}},
		},
		Events: []Event{
			{Conn: 0, Dir: ToServer, Frame: []byte{}},
			{Conn: 0, Dir: ToServer, Frame: []byte{0xaa}},
			{Conn: 1, Dir: ToClient, Frame: []byte{0xbb}},
			{Conn: 1, Dir: ToServer, Frame: []byte{0xcc, 0xdd}},
			{Conn: 1, Dir: ToServer, End: true},
		},
	}, c)
}

func TestParseErrors(t *testing.T) {
	for want, text := range map[string]string{
		"unexpected end":   `{`,
		"4 fields, want 5": `{"addrs": ["a"], "log": [[0, 0, 0, "C>S"]]}`,
		"cannot unmarshal": `{"addrs": ["a"], "log": [["now", 0, 0, "C>S", ""]]}`,
		"invalid byte":     `{"addrs": ["a"], "log": [[0, 0, 0, "C>S", "xx"]]}`,
		`direction "up"`:   `{"addrs": ["a"], "log": [[0, 0, 0, "up", ""]]}`,
		"listener 1 of 1":  `{"addrs": ["a"], "log": [[0, 1, 0, "C>S", ""]]}`,
		"connection -1":    `{"addrs": ["a"], "log": [[0, 0, -1, "C>S", ""]]}`,
		"connection 0 C>S: 9 bytes are no frame": `{"addrs": ["a"], "log": [[0, 0, 0, "C>S",
			"0200000000000000aa"]]}`,
	} {
		_, err := Parse([]byte(text))
		require.ErrorContains(t, err, want)
	}
	_, err := Load(filepath.Join(t.TempDir(), "none.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
