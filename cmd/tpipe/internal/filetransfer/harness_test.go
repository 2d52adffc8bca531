package filetransfer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// eachDialect runs test as a subtest in the native dialect and in the compatible one.
func eachDialect(t *testing.T, test func(t *testing.T, dialect pipe.Dialect)) {
	for _, d := range []pipe.Dialect{pipe.DialectNative, pipe.DialectCompatible} {
		t.Run(string(d), func(t *testing.T) { test(t, d) })
	}
}

// ends returns both ends of a new pipe over TCP in that dialect. They are closed when the test
// ends.
func ends(t *testing.T, dialect pipe.Dialect) (sender, receiver *pipe.Pipe) {
	t.Helper()
	options := pipe.Options{Name: "test", Limits: Limits(), Dialect: dialect}
	server, err := tensorpipe.TorchProfile().NewContext(options)
	require.NoError(t, err)
	client, err := tensorpipe.TorchProfile().NewContext(options)
	require.NoError(t, err)
	t.Cleanup(func() {
		closed := testwait.Start(server.Close)
		client.Close()
		testwait.Finish(t, closed)
	})
	l, err := server.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	sender, err = client.Dial(t.Context(), l.URLs()[0])
	require.NoError(t, err)
	receiver, err = l.Accept(t.Context())
	require.NoError(t, err)
	return sender, receiver
}

func openStore(t *testing.T, o StoreOptions) (*Store, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := OpenStore(dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s, dir
}

// startReceive calls s.Receive for p and w on a new goroutine. It returns a channel that receives
// the result.
func startReceive(ctx context.Context, s *Store, p *pipe.Pipe, w Watcher) <-chan error {
	return testwait.Start(func() error { return s.Receive(ctx, p, w) })
}

// move sends the files at paths to the store s through a new pipe, waits for both ends, and returns
// the error of Send. It checks that Receive fails if and only if Send does.
func move(t *testing.T, dialect pipe.Dialect, s *Store, paths ...string) error {
	t.Helper()
	return moveWith(t, dialect, s, SendOptions{}, paths...)
}

// moveWith does what move does, with the options o of Send.
func moveWith(t *testing.T, dialect pipe.Dialect, s *Store, o SendOptions, paths ...string) error {
	t.Helper()
	list, err := Gather(paths, false)
	require.NoError(t, err)
	sender, receiver := ends(t, dialect)
	got := startReceive(t.Context(), s, receiver, NoWatcher{})
	sendErr := Send(t.Context(), sender, list, o, NoWatcher{})
	if sendErr == nil {
		require.NoError(t, sender.Close())
	}
	err = testwait.Finish(t, got)
	require.Equal(t, sendErr == nil, err == nil, "%v, %v", sendErr, err)
	return sendErr
}

// heap returns the bytes of a safetensors file with tensors of the given sizes in bytes. The header
// contains salt, and the data depends on it, so files with different salts differ.
func heap(salt string, sizes ...int) []byte {
	header := map[string]any{"__metadata__": map[string]string{"salt": salt}}
	end := 0
	for i, n := range sizes {
		header[string(rune('a'+i%26))+string(rune('0'+i/26))] = map[string]any{"dtype": "U8", "shape": []int{n}, "data_offsets": []int{end, end + n}}
		end += n
	}
	text, _ := json.Marshal(header)
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	file = append(file, text...)
	source := rand.NewChaCha8([32]byte([]byte(salt + "________________________________")[:32]))
	data := make([]byte, end)
	source.Read(data)
	return append(file, data...)
}

// headOf returns the number of bytes before the tensors of file, the bytes of a safetensors file.
func headOf(file []byte) int { return 8 + int(binary.LittleEndian.Uint64(file)) }

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
	require.NoError(t, os.WriteFile(path, data, 0o666))
}

// tree returns the contents of all files below dir, by their paths relative to dir.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, p))
		files[p] = string(data)
		return err
	}))
	return files
}

// log is a Watcher that records its calls, and runs onAccepted when a transfer starts.
type log struct {
	onAccepted func()

	mu           sync.Mutex
	files, bytes int
	moved, moves int // bytes, and calls of Moved
	placed       map[string]File
	kept         map[string]int
}

func (l *log) Accepted(files, bytes int) {
	l.mu.Lock()
	l.files, l.bytes = files, bytes
	l.mu.Unlock()
	if l.onAccepted != nil {
		l.onAccepted()
	}
}

func (l *log) Moved(bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moved += bytes
	l.moves++
}

func (l *log) Placed(f File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.placed == nil {
		l.placed = map[string]File{}
	}
	l.placed[f.Name] = f
}

func (l *log) Kept(name string, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept == nil {
		l.kept = map[string]int{}
	}
	l.kept[name] = bytes
}
