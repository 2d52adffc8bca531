package filetransfer

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestFolderArrives checks that a folder arrives byte for byte and that both ends report the same
// files: files of other programs with all element types, without tensors, with empty ones, with
// many, and with a padded header.
func TestFolderArrives(t *testing.T) { eachDialect(t, testFolderArrives) }

func testFolderArrives(t *testing.T, dialect pipe.Dialect) {
	src := filepath.Join(t.TempDir(), "weights")
	golden := "../../../../tensor/safetensors/testdata"
	for name, text := range tree(t, golden) {
		if strings.HasSuffix(name, Suffix) {
			writeFile(t, filepath.Join(src, name), []byte(text))
		}
	}
	writeFile(t, filepath.Join(src, "none.safetensors"), heap("none"))
	writeFile(t, filepath.Join(src, "deep/er/padded.safetensors"), padded(heap("p", 5, 0, 9), 100))
	writeFile(t, filepath.Join(src, "deep/er/empty.safetensors"), heap("e", 0, 0))
	sizes := make([]int, 300)
	for i := range sizes {
		sizes[i] = i * i
	}
	writeFile(t, filepath.Join(src, "many.safetensors"), heap("m", sizes...))
	want := tree(t, src)
	require.Greater(t, len(want), 8)
	writeFile(t, filepath.Join(src, "config.json"), []byte("{}"))

	list, err := Gather([]string{src}, false)
	require.NoError(t, err)
	require.Equal(t, 1, list.Skipped)
	require.Equal(t, len(want), list.Len())
	s, dir := openStore(t, StoreOptions{})
	sender, receiver := ends(t, dialect)
	var sent, received log
	got := startReceive(t.Context(), s, receiver, &received)
	require.NoError(t, Send(t.Context(), sender, list, SendOptions{}, &sent))
	require.Equal(t, want, tree(t, filepath.Join(dir, "weights")), "Send returns when all is in place")
	require.NoError(t, sender.Close())
	require.NoError(t, testwait.Finish(t, got))
	require.Equal(t, len(want), len(sent.placed))
	require.Equal(t, sent.placed, received.placed)
	tensors := 0
	for name, f := range sent.placed {
		require.Equal(t, sumOf([]byte(want[strings.TrimPrefix(name, "weights/")])), f.CRC32C)
		tensors += f.Tensors
	}
	require.Equal(t, list.Tensors, tensors)
	for _, l := range []*log{&sent, &received} {
		require.Equal(t, []int{list.Len(), list.Bytes, list.Bytes}, []int{l.files, l.bytes, l.moved})
	}
}

// TestProgressWithinATensor checks that both ends report bytes of one large tensor after each chunk,
// not only at its end.
func TestProgressWithinATensor(t *testing.T) { eachDialect(t, testProgressWithinATensor) }

func testProgressWithinATensor(t *testing.T, dialect pipe.Dialect) {
	const chunks = 5
	src := filepath.Join(t.TempDir(), oneName)
	writeFile(t, src, heap("one", chunks*chunkBytes))
	list, err := Gather([]string{src}, false)
	require.NoError(t, err)
	s, _ := openStore(t, StoreOptions{})
	sender, receiver := ends(t, dialect)
	var sent, received log
	got := startReceive(t.Context(), s, receiver, &received)
	require.NoError(t, Send(t.Context(), sender, list, SendOptions{}, &sent))
	require.NoError(t, sender.Close())
	require.NoError(t, testwait.Finish(t, got))
	for _, l := range []*log{&sent, &received} {
		require.Equal(t, list.Bytes, l.moved)
		require.GreaterOrEqual(t, l.moves, chunks)
	}
}

// padded returns a copy of file, a safetensors file, with n spaces appended to its header, as the
// format allows.
func padded(file []byte, n int) []byte {
	end := headOf(file)
	out := append([]byte{}, file[:end]...)
	binary.LittleEndian.PutUint64(out, uint64(end-8+n))
	out = append(out, strings.Repeat(" ", n)...)
	return append(out, file[end:]...)
}

func TestSendersAtOnce(t *testing.T) { eachDialect(t, testSendersAtOnce) }

func testSendersAtOnce(t *testing.T, dialect pipe.Dialect) {
	s, dir := openStore(t, StoreOptions{})
	var moving sync.WaitGroup
	want := map[string]string{}
	for i := range 5 {
		name := fmt.Sprintf("w%d.safetensors", i)
		file := heap(name, 1<<20, 100, 1<<20)
		want[name] = string(file)
		path := filepath.Join(t.TempDir(), name)
		writeFile(t, path, file)
		moving.Go(func() {
			if err := move(t, dialect, s, path); err != nil {
				t.Error(err)
			}
		})
	}
	moving.Wait()
	require.Equal(t, want, tree(t, dir))
}

func TestGather(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	a := heap("a", 3)
	writeFile(t, "x/a.safetensors", a)
	writeFile(t, "x/y/b.safetensors", a)
	writeFile(t, "z/a.safetensors", a)
	writeFile(t, "readme.md", a)
	writeFile(t, "bad/cut.safetensors", a[:len(a)-1])
	writeFile(t, "bad/long.safetensors", append(a, 0))
	writeFile(t, "bad/none.safetensors", nil)
	writeFile(t, "bad/text.safetensors", []byte("version https://git-lfs.github.com/spec/v1\n"))
	writeFile(t, "case/A/a.safetensors", a)
	writeFile(t, "case/a/b.safetensors", a)
	writeFile(t, "odd/a\nb.safetensors", a)
	writeFile(t, `back/a\b.safetensors`, a)
	require.NoError(t, os.Mkdir("void", 0o777))
	require.NoError(t, os.MkdirAll("links/dir", 0o777))
	require.NoError(t, os.Symlink("../x/a.safetensors", "links/l.safetensors"))
	require.NoError(t, os.Symlink("../readme.md", "links/readme.md"))
	require.NoError(t, os.MkdirAll("loops", 0o777))
	require.NoError(t, os.Symlink("../x", "loops/x"))
	require.NoError(t, os.MkdirAll("torn", 0o777))
	require.NoError(t, os.Symlink("nowhere", "torn/t.safetensors"))
	require.NoError(t, os.Symlink("x", "alias"))

	for _, c := range []struct{ paths, want string }{
		{"x/a.safetensors", "a.safetensors"},
		{"x", "x/a.safetensors x/y/b.safetensors"},
		{"x/", "x/a.safetensors x/y/b.safetensors"},
		{"./x", "x/a.safetensors x/y/b.safetensors"},
		{"x/.", "a.safetensors y/b.safetensors"},
		{"x/../x/y", "y/b.safetensors"},
		{"alias", "alias/a.safetensors alias/y/b.safetensors"},
		{"links/l.safetensors", "l.safetensors"},
		{"x z/a.safetensors", "x/a.safetensors x/y/b.safetensors a.safetensors"},
		{"x/a.safetensors z/a.safetensors", "! is there twice"},
		{"x/. z/.", "! is there twice"},
		{"nothing", "! no such file"},
		{"readme.md", "! is no *.safetensors"},
		{"void", "! no *.safetensors in void"},
		{"bad/cut.safetensors", "! bad/cut.safetensors: safetensors: "},
		{"bad/long.safetensors", "! the file has"},
		{"bad/none.safetensors", "! ends within the length of the header"},
		{"bad/text.safetensors", "! bad/text.safetensors: safetensors: "},
		{"case", "! by case only"},
		{"odd", "! has control characters"},
		{"back", "! has a backslash"},
		{"links", "! is a symbolic link; -follow"},
		{"loops", "! is a symbolic link to a folder"},
	} {
		list, err := Gather(strings.Fields(c.paths), false)
		if want, bad := strings.CutPrefix(c.want, "! "); bad {
			require.ErrorContains(t, err, want, c.paths)
			continue
		}
		require.NoError(t, err, c.paths)
		require.Equal(t, strings.Fields(c.want), names(list), c.paths)
	}
	list, err := Gather([]string{"links"}, true)
	require.NoError(t, err)
	require.Equal(t, []string{"links/l.safetensors"}, names(list))
	require.Equal(t, 1, list.Skipped)
	_, err = Gather([]string{"torn"}, true)
	require.ErrorIs(t, err, os.ErrNotExist)
	t.Chdir("x")
	list, err = Gather([]string{"."}, false)
	require.NoError(t, err)
	require.Equal(t, []string{"a.safetensors", "y/b.safetensors"}, names(list))
	t.Chdir("y")
	list, err = Gather([]string{".."}, false)
	require.NoError(t, err)
	require.Equal(t, []string{"x/a.safetensors", "x/y/b.safetensors"}, names(list))
}

func names(c *FileList) []string {
	var out []string
	for _, it := range c.items {
		out = append(out, it.name)
	}
	return out
}

// TestFileThatChanges checks that a transfer fails at both ends, and leaves no files, if the file
// to send is changed or removed after the offer was accepted.
func TestFileThatChanges(t *testing.T) { eachDialect(t, testFileThatChanges) }

func testFileThatChanges(t *testing.T, dialect pipe.Dialect) {
	for what, change := range map[string]func(path string) error{
		"cut":     func(path string) error { return os.Truncate(path, 500) },
		"longer":  func(path string) error { return os.Truncate(path, 5000) },
		"removed": os.Remove,
		"other":   func(path string) error { return os.WriteFile(path, heap("other", 1<<10, 5), 0o666) },
		"touched": func(path string) error { return os.Rename(path, path+"x") },
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "w.safetensors")
			writeFile(t, path, heap("c", 1<<10, 1<<10))
			list, err := Gather([]string{path}, false)
			require.NoError(t, err)
			s, dir := openStore(t, StoreOptions{})
			sender, receiver := ends(t, dialect)
			got := startReceive(t.Context(), s, receiver, NoWatcher{})
			err = Send(t.Context(), sender, list, SendOptions{}, &log{onAccepted: func() {
				if err := change(path); err != nil {
					t.Error(err)
				}
			}})
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, testwait.Finish(t, got), path, "the receiver hears why")
			require.Empty(t, tree(t, dir))
		})
	}
}

// TestFileThatChangesLater checks that check and read return ErrChanged for a file that was cut
// after its header was read.
func TestFileThatChangesLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	file := heap("c", 1<<10, 1<<10)
	writeFile(t, path, file)
	src, err := openSource(path)
	require.NoError(t, err)
	defer src.file.Close()
	data := make([]byte, 1<<10)
	crc, err := src.read(data, headOf(file)+(1<<10))
	require.NoError(t, err)
	require.Equal(t, sumOf(data), crc)
	require.NoError(t, src.check())
	require.NoError(t, os.Truncate(path, int64(len(file)-1)))
	require.ErrorIs(t, src.check(), ErrChanged)
	_, err = src.read(data, headOf(file)+(1<<10))
	require.ErrorIs(t, err, ErrChanged)
}
