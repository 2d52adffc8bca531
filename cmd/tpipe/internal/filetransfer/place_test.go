package filetransfer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestManySmallFiles checks that more files arrive than may wait for their final names, and that
// both ends report each of them once.
func TestManySmallFiles(t *testing.T) { eachDialect(t, testManySmallFiles) }

func testManySmallFiles(t *testing.T, dialect pipe.Dialect) {
	src := filepath.Join(t.TempDir(), "w")
	const number = 2*maxUnplaced + 50
	for i := range number {
		name := fmt.Sprintf("%d/%d%s", i%3, i, Suffix)
		writeFile(t, filepath.Join(src, name), heap(name, i%2)) // every other one has no bytes after the header
	}
	list, err := Gather([]string{src}, false)
	require.NoError(t, err)
	s, dir := openStore(t, StoreOptions{})
	sender, receiver := ends(t, dialect)
	var sent, received log
	got := startReceive(t.Context(), s, receiver, &received)
	require.NoError(t, Send(t.Context(), sender, list, SendOptions{}, &sent))
	require.Equal(t, tree(t, src), tree(t, filepath.Join(dir, "w")))
	require.NoError(t, sender.Close())
	require.NoError(t, testwait.Finish(t, got))
	require.Len(t, sent.placed, number)
	require.Equal(t, sent.placed, received.placed)
}

// TestPlaceTogether checks that files whose final names are taken do not prevent others of the same
// batch from getting theirs, and that place reports the first one.
func TestPlaceTogether(t *testing.T) {
	s, dir := openStore(t, StoreOptions{})
	var files []*partFile
	for _, name := range []string{"a/1", "a/2", "3", "a/b/4"} {
		p, err := s.newPartFile(fileOffer{name + Suffix, 5}, []byte("bytes"))
		require.NoError(t, err)
		files = append(files, p)
	}
	for _, taken := range []string{"a/2", "3"} {
		writeFile(t, filepath.Join(dir, taken+Suffix), []byte("mine"))
	}
	placed, err := s.place(files)
	require.Equal(t, []*partFile{files[0], files[3]}, placed)
	require.ErrorIs(t, err, ErrExists)
	require.ErrorContains(t, err, "a/2"+Suffix+": ")
	for _, p := range files {
		p.abandon(false)
	}
	require.Equal(t, map[string]string{
		"a/1" + Suffix: "bytes", "a/2" + Suffix: "mine", "3" + Suffix: "mine", "a/b/4" + Suffix: "bytes",
	}, tree(t, dir))
}

// TestWrongBytesDoNotCount checks that bytes with another checksum fail a write of a part file, and
// that the part file that is kept ends before them.
func TestWrongBytesDoNotCount(t *testing.T) {
	s, dir := openStore(t, StoreOptions{})
	chunk := heap("chunk", chunkBytes)[:chunkBytes]
	p, err := s.newPartFile(fileOffer{oneName, 3 * chunkBytes}, nil)
	require.NoError(t, err)
	require.NoError(t, p.write(chunk, sumOf(chunk)))
	require.ErrorIs(t, p.write(chunk, sumOf(chunk)+1), ErrChecksum)
	require.Equal(t, chunkBytes, p.abandon(true))
	kept, err := os.ReadFile(filepath.Join(dir, partOf(oneName)))
	require.NoError(t, err)
	require.Equal(t, string(chunk), string(kept))
}
