package filetransfer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// resume sends the file at path with Resume to the store s, and returns how many bytes Send reports
// that the receiver had. The file must arrive, and both ends must report the same.
func resume(t *testing.T, dialect pipe.Dialect, s *Store, path string) (found int) {
	t.Helper()
	list, err := Gather([]string{path}, false)
	require.NoError(t, err)
	sender, receiver := ends(t, dialect)
	var sent, received log
	got := startReceive(t.Context(), s, receiver, &received)
	require.NoError(t, Send(t.Context(), sender, list, SendOptions{Resume: true}, &sent))
	require.NoError(t, sender.Close())
	require.NoError(t, testwait.Finish(t, got))
	require.Equal(t, sent.placed, received.placed)
	require.Equal(t, []int{list.Bytes, list.Bytes}, []int{sent.moved, received.moved})
	return sent.placed[filepath.Base(path)].Found
}

// TestResume checks how many bytes of a file are not sent again, for each state of the part file
// that a receiver may have left, and that the file that arrives is right.
func TestResume(t *testing.T) { eachDialect(t, testResume) }

func testResume(t *testing.T, dialect pipe.Dialect) {
	file := heap("resume", 6<<20, 5<<20) // chunks end at 4 and 8 MiB
	path := filepath.Join(t.TempDir(), oneName)
	writeFile(t, path, file)
	flipped := func(at int) []byte {
		out := append([]byte{}, file...)
		out[at] ^= 1
		return out
	}
	for what, c := range map[string]struct {
		part []byte
		want int
	}{
		"nothing":            {nil, 0},
		"less than a chunk":  {file[:chunkBytes-1], 0},
		"one chunk":          {file[:chunkBytes], chunkBytes},
		"one and a half":     {file[:chunkBytes*3/2], chunkBytes},
		"all":                {file, len(file)},
		"more":               {append(append([]byte{}, file...), 1, 2, 3), len(file)},
		"other first chunk":  {flipped(headOf(file)), 0},
		"other header":       {flipped(9), 0},
		"other second chunk": {flipped(chunkBytes), chunkBytes},
		"other last chunk":   {flipped(len(file) - 1), 2 * chunkBytes},
		"zeros":              {make([]byte, len(file)), 0},
	} {
		t.Run(what, func(t *testing.T) {
			s, dir := openStore(t, StoreOptions{})
			if c.part != nil {
				writeFile(t, filepath.Join(dir, partOf(oneName)), c.part)
			}
			require.Equal(t, c.want, resume(t, dialect, s, path))
			require.Equal(t, map[string]string{oneName: string(file)}, tree(t, dir))
			require.Equal(t, len(file), resume(t, dialect, s, path), "a complete file is skipped")
		})
	}
}

// TestResumeChecksExistingFiles checks that an existing file of the same size and other bytes is an
// error, and is replaced with Overwrite.
func TestResumeChecksExistingFiles(t *testing.T) {
	path, file := one(t)
	other := append([]byte{}, file...)
	other[len(other)-1] ^= 1
	for _, overwrite := range []bool{false, true} {
		s, dir := openStore(t, StoreOptions{Overwrite: overwrite})
		writeFile(t, filepath.Join(dir, oneName), other)
		if !overwrite {
			err := moveWith(t, pipe.DialectNative, s, SendOptions{Resume: true}, path)
			require.ErrorContains(t, err, ErrExists.Error())
			require.Equal(t, map[string]string{oneName: string(other)}, tree(t, dir))
			continue
		}
		require.Zero(t, resume(t, pipe.DialectNative, s, path))
		require.Equal(t, map[string]string{oneName: string(file)}, tree(t, dir))
	}
}

// TestResumeWritesThroughNoLink checks that a part file that is a link is replaced, although the
// linked file has the bytes of the file.
func TestResumeWritesThroughNoLink(t *testing.T) {
	file := heap("linked", 2*chunkBytes)
	path := filepath.Join(t.TempDir(), oneName)
	writeFile(t, path, file)
	for what, link := range map[string]func(old, name string) error{"symbolic": os.Symlink, "hard": os.Link} {
		t.Run(what, func(t *testing.T) {
			s, dir := openStore(t, StoreOptions{})
			secret := filepath.Join(t.TempDir(), "secret")
			writeFile(t, secret, file[:chunkBytes+1])
			require.NoError(t, link(secret, filepath.Join(dir, partOf(oneName))))
			require.Zero(t, resume(t, pipe.DialectNative, s, path))
			kept, err := os.ReadFile(secret)
			require.NoError(t, err)
			require.Len(t, kept, chunkBytes+1)
		})
	}
}

// TestResumeOfABusyFile checks that a part file that another receiver uses is not touched.
func TestResumeOfABusyFile(t *testing.T) {
	file := heap("busy", 2*chunkBytes)
	path := filepath.Join(t.TempDir(), oneName)
	writeFile(t, path, file)
	s, dir := openStore(t, StoreOptions{})
	other, err := OpenStore(dir, StoreOptions{})
	require.NoError(t, err)
	defer other.Close()
	p, err := other.newPartFile(fileOffer{oneName, len(file)}, file[:chunkBytes])
	require.NoError(t, err)
	defer p.abandon(false)
	require.ErrorContains(t, moveWith(t, pipe.DialectNative, s, SendOptions{Resume: true}, path), ErrBusy.Error())
	left, err := os.ReadFile(filepath.Join(dir, partOf(oneName)))
	require.NoError(t, err)
	require.Len(t, left, chunkBytes)
}

// TestHostileResume checks that a sender cannot make the receiver keep bytes that were not reported,
// or a header that was not checked.
func TestHostileResume(t *testing.T) {
	file := heap("hostile", 2*chunkBytes)
	other := heap("another", 2*chunkBytes)
	require.Len(t, other, len(file))
	for what, c := range map[string]struct {
		from int
		head []byte
		want string
	}{
		"more than reported": {2 * chunkBytes, file, "a start at byte 8388608"},
		"half a chunk":       {chunkBytes / 2, file, "a start at byte 2097152"},
		"all of a part":      {len(file), file, "a start at byte"},
		"another header":     {chunkBytes, other, "a header that differs"},
	} {
		t.Run(what, func(t *testing.T) {
			s, dir := openStore(t, StoreOptions{})
			writeFile(t, filepath.Join(dir, partOf(oneName)), file[:chunkBytes])
			sender, receiver := ends(t, pipe.DialectNative)
			got := startReceive(t.Context(), s, receiver, NoWatcher{})
			script := &script{t, sender, c.head}
			script.write(script.encode(senderMessage{Offer: &offer{Version: version, Resume: true, Files: []fileOffer{{oneName, len(file)}}}}))
			a, err := nextAnswer(t.Context(), sender)
			require.NoError(t, err)
			require.True(t, a.Accepted)
			a, err = nextAnswer(t.Context(), sender)
			require.NoError(t, err)
			require.Equal(t, chunkBytes, a.Found.Bytes)
			script.headFrom(0, c.from)
			require.Contains(t, fault(t, sender).Text, c.want)
			sender.Close()
			require.ErrorIs(t, testwait.Finish(t, got), ErrProtocol)
			require.NotContains(t, tree(t, dir), oneName)
		})
	}
}

// TestStop checks that a sender that stops learns which part files the receiver has kept, that both
// ends report the same, and that a later transfer resumes after them.
func TestStop(t *testing.T) { eachDialect(t, testStop) }

func testStop(t *testing.T, dialect pipe.Dialect) {
	file := heap("stop", 3*chunkBytes)
	s, dir := openStore(t, StoreOptions{})
	sender, receiver := ends(t, dialect)
	var received log
	got := startReceive(t.Context(), s, receiver, &received)
	script := &script{t, sender, file}
	script.offers(fileOffer{oneName, len(file)})
	script.goodHead(0)
	first := file[headOf(file):chunkBytes]
	script.chunk(0, headOf(file), first, sumOf(first))
	script.write(script.encode(senderMessage{Stop: &stop{"enough"}}))
	a, err := nextAnswer(t.Context(), sender)
	require.NoError(t, err)
	require.Equal(t, &stopped{[]fileKept{{0, chunkBytes}}}, a.Stopped)
	sender.Close()
	require.Equal(t, &StopError{"enough"}, testwait.Finish(t, got))
	require.Equal(t, map[string]int{oneName: chunkBytes}, received.kept)
	require.Equal(t, map[string]string{partOf(oneName): string(file[:chunkBytes])}, tree(t, dir))
	path := filepath.Join(t.TempDir(), oneName)
	writeFile(t, path, file)
	require.Equal(t, chunkBytes, resume(t, dialect, s, path))
}
