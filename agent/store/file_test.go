package store

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/flock"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// written creates a file store in which key a is "2" and key b is empty, after three changes. It
// closes the store and returns the path and the content of its file.
func written(t *testing.T) (path string, content []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "store")
	s := opened(t, path)
	require.NoError(t, s.Set(t.Context(), "a", []byte("1")))
	require.NoError(t, s.Set(t.Context(), "b", nil))
	require.NoError(t, s.Set(t.Context(), "a", []byte("2")))
	require.NoError(t, s.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return path, content
}

func opened(t *testing.T, path string) *File {
	t.Helper()
	s, err := OpenFile(t.Context(), path, Limits{})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func wantValue(t *testing.T, s Store, key, want string) {
	t.Helper()
	value, err := s.Get(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, want, string(value))
}

func TestFileIsPersistent(t *testing.T) {
	path, _ := written(t)
	s := opened(t, path)
	wantValue(t, s, "a", "2")
	wantValue(t, s, "b", "")
}

// TestFileWaitFindsDeletedKey tests that Wait returns for a key that was created and deleted while
// it did not read the file, and not for a key that had been deleted before.
func TestFileWaitFindsDeletedKey(t *testing.T) {
	path, _ := written(t)
	s, other := opened(t, path), opened(t, path)
	_, err := other.Delete(t.Context(), "a")
	require.NoError(t, err)
	_, err = s.Get(t.Context(), "a")
	require.ErrorIs(t, err, ErrNotFound)
	waited := testwait.StartBlocked(t, "Wait", func() error { return s.Wait(t.Context(), "a", "b") })
	s.sem <- struct{}{} // polls wait
	require.NoError(t, other.Set(t.Context(), "a", nil))
	_, err = other.Delete(t.Context(), "a")
	require.NoError(t, err)
	<-s.sem
	require.NoError(t, testwait.Finish(t, waited))
}

// TestFileWithAnIncompleteRecord tests that a store opens a file whose last record is cut off at
// any byte, has the values of the records before, and that its next write replaces the incomplete
// record.
func TestFileWithAnIncompleteRecord(t *testing.T) {
	path, content := written(t)
	last := len(content) - len(record{kind: recordSet, key: "a", value: []byte("2")}.append(nil))
	for size := last; size < len(content); size++ {
		require.NoError(t, os.WriteFile(path, content[:size], 0o600))
		s := opened(t, path)
		wantValue(t, s, "a", "1")
		require.NoError(t, s.Set(t.Context(), "a", []byte("3")))
		wantValue(t, opened(t, path), "a", "3")
	}
}

// TestReadPastIncompleteRecord tests that an open store ignores an incomplete record that another
// process has appended, and later reads the record that replaces it.
func TestReadPastIncompleteRecord(t *testing.T) {
	path, content := written(t)
	s := opened(t, path)
	half := record{kind: recordSet, key: "a", value: []byte("never")}.append(nil)
	require.NoError(t, os.WriteFile(path, append(content, half[:len(half)-1]...), 0o600))
	wantValue(t, s, "a", "2")
	wantValue(t, s, "a", "2")
	require.NoError(t, opened(t, path).Set(t.Context(), "a", []byte("3")))
	wantValue(t, s, "a", "3")
}

func TestFileWithAnIncompleteHeader(t *testing.T) {
	for size := range len(fileMagic) {
		path := filepath.Join(t.TempDir(), "store")
		require.NoError(t, os.WriteFile(path, []byte(fileMagic[:size]), 0o600))
		require.NoError(t, opened(t, path).Set(t.Context(), "a", []byte("1")))
		wantValue(t, opened(t, path), "a", "1")
	}
}

// TestDamagedFile tests, for each byte of the file, that OpenFile fails with ErrCorrupt if the byte
// is changed, and leaves the file as it is.
func TestDamagedFile(t *testing.T) {
	path, content := written(t)
	for i := range content {
		bad := bytes.Clone(content)
		bad[i] ^= 0x10
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		_, err := OpenFile(t.Context(), path, Limits{})
		require.ErrorIs(t, err, ErrCorrupt, "byte %d", i)
		remaining, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, bad, remaining)
	}
}

func TestTruncatedFile(t *testing.T) {
	path, content := written(t)
	s := opened(t, path)
	require.NoError(t, os.Truncate(path, int64(len(content)-1)))
	for range 2 {
		_, err := s.Get(t.Context(), "a")
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorIs(t, s.Set(t.Context(), "a", nil), ErrCorrupt)
	}
}

func TestOpenFileFails(t *testing.T) {
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "missing", "store")} {
		_, err := OpenFile(t.Context(), path, Limits{})
		var typed *Error
		require.ErrorAs(t, err, &typed)
		require.Equal(t, path, typed.Key)
	}
}

func TestFileLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s, err := OpenFile(t.Context(), path, Limits{TotalBytes: 100, MaxKeys: 2})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Set(t.Context(), "a", nil))
	require.NoError(t, s.Set(t.Context(), "b", nil))
	require.ErrorIs(t, s.Set(t.Context(), "c", nil), ErrLimit, "two keys")
	for err == nil {
		err = s.Set(t.Context(), "a", []byte("x"))
	}
	require.ErrorIs(t, err, ErrLimit)
	wantValue(t, s, "a", "x")
	_, err = OpenFile(t.Context(), path, Limits{TotalBytes: 50})
	require.ErrorIs(t, err, ErrLimit)
}

// TestLockedFile tests that while another process holds the lock of the file, Get of a known value
// does not block, and Set and OpenFile end with their context. Close ends blocked calls of Set with
// ErrClosed.
func TestLockedFile(t *testing.T) {
	path, _ := written(t)
	s := opened(t, path)
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	ok, err := flock.Try(f, true)
	require.NoError(t, err)
	require.True(t, ok)

	wantValue(t, s, "a", "2")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Set(ctx, "a", nil), ErrTimeout)
	_, err = OpenFile(ctx, path, Limits{})
	require.ErrorIs(t, err, ErrTimeout)
	blocked := testwait.Start(func() error { return s.Set(t.Context(), "a", nil) })
	queued := testwait.Start(func() error { return s.Set(t.Context(), "a", nil) })
	require.NoError(t, s.Close())
	require.ErrorIs(t, testwait.Finish(t, blocked), ErrClosed)
	require.ErrorIs(t, testwait.Finish(t, queued), ErrClosed)
}

func FuzzRecords(f *testing.F) {
	one := record{kind: recordSet, key: "key", value: []byte("value")}.append(nil)
	f.Add(one)
	f.Add(record{kind: recordDelete}.append(one))
	f.Add(one[:len(one)-1])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := scanner{r: bufio.NewReader(bytes.NewReader(b)), remaining: int64(len(b))}
		var again []byte
		for {
			r, size, err := s.next()
			if err != nil {
				break
			}
			again = r.append(again)
			require.Len(t, b[:len(again)], len(again))
			require.Positive(t, size)
		}
		require.Equal(t, b[:len(again)], append([]byte{}, again...))
	})
}
