package filetransfer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

const oneName = "one.safetensors"

// one writes a small safetensors file into a new directory and returns its path and its bytes.
func one(t *testing.T) (path string, file []byte) {
	t.Helper()
	path, file = filepath.Join(t.TempDir(), oneName), heap("one", 5, 7)
	writeFile(t, path, file)
	return path, file
}

func TestOpenStore(t *testing.T) {
	dir := t.TempDir()
	_, err := OpenStore(filepath.Join(dir, "missing"), StoreOptions{})
	require.ErrorIs(t, err, os.ErrNotExist)
	file := filepath.Join(dir, "file")
	writeFile(t, file, nil)
	_, err = OpenStore(file, StoreOptions{})
	require.ErrorContains(t, err, "not a directory")
	s, err := OpenStore(dir, StoreOptions{})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Equal(t, map[string]string{"file": ""}, tree(t, dir), "nothing is left of the trial")
}

func TestExistingFiles(t *testing.T) {
	path, file := one(t)
	for what, c := range map[string]struct {
		put             func(target string) error
		plain, replaces string // errors without and with Overwrite
	}{
		"file":      {func(p string) error { return os.WriteFile(p, []byte("old"), 0o666) }, "exists already; start the receiver with -overwrite", ""},
		"directory": {func(p string) error { return os.Mkdir(p, 0o777) }, "exists already", "and is not a regular file"},
		"link":      {func(p string) error { return os.Symlink("/etc/hostname", p) }, "exists already", "and is not a regular file"},
		"torn link": {func(p string) error { return os.Symlink("nowhere", p) }, "exists already", "and is not a regular file"},
	} {
		t.Run(what, func(t *testing.T) {
			for overwrite, want := range map[bool]string{false: c.plain, true: c.replaces} {
				store, dir := openStore(t, StoreOptions{Overwrite: overwrite})
				target := filepath.Join(dir, oneName)
				require.NoError(t, c.put(target))
				err := move(t, pipe.DialectNative, store, path)
				if want != "" {
					require.IsType(t, &FaultError{}, err)
					require.ErrorContains(t, err, want)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, map[string]string{oneName: string(file)}, tree(t, dir))
			}
		})
	}
}

// TestFilesInTheWay checks that a transfer fails if a file exists where it needs a directory, and
// if a file of its final name is created during the transfer. The existing files do not change.
func TestFilesInTheWay(t *testing.T) {
	path, _ := one(t)
	store, dir := openStore(t, StoreOptions{})
	writeFile(t, filepath.Join(dir, filepath.Base(filepath.Dir(path))), nil)
	require.ErrorContains(t, move(t, pipe.DialectNative, store, filepath.Dir(path)), "not a directory")

	store, dir = openStore(t, StoreOptions{})
	list, err := Gather([]string{path}, false)
	require.NoError(t, err)
	sender, receiver := ends(t, pipe.DialectNative)
	got := startReceive(t.Context(), store, receiver, NoWatcher{})
	err = Send(t.Context(), sender, list, SendOptions{}, &log{onAccepted: func() { writeFile(t, filepath.Join(dir, oneName), []byte("mine")) }})
	require.ErrorContains(t, err, ErrExists.Error())
	require.ErrorIs(t, testwait.Finish(t, got), ErrExists)
	require.Equal(t, map[string]string{oneName: "mine"}, tree(t, dir))
}

// TestPartFiles checks that a transfer replaces whatever has the name of its part file, without
// writing through a link, but fails with ErrBusy if another receiver holds the part file.
func TestPartFiles(t *testing.T) {
	path, file := one(t)
	secret := filepath.Join(t.TempDir(), "secret")
	for what, put := range map[string]func(part string) error{
		"file": func(p string) error {
			return os.WriteFile(p, []byte("left over, and longer than that which comes"), 0o400)
		},
		"link":      func(p string) error { return os.Symlink(secret, p) },
		"hard link": func(p string) error { return os.Link(secret, p) },
		"directory": func(p string) error { return os.Mkdir(p, 0o777) },
	} {
		t.Run(what, func(t *testing.T) {
			writeFile(t, secret, []byte("secret"))
			store, dir := openStore(t, StoreOptions{})
			require.NoError(t, put(filepath.Join(dir, partOf(oneName))))
			require.NoError(t, move(t, pipe.DialectNative, store, path))
			require.Equal(t, map[string]string{oneName: string(file)}, tree(t, dir))
			kept, err := os.ReadFile(secret)
			require.NoError(t, err)
			require.Equal(t, "secret", string(kept))
		})
	}
	store, dir := openStore(t, StoreOptions{})
	other, err := OpenStore(dir, StoreOptions{})
	require.NoError(t, err)
	defer other.Close()
	p, err := other.newPartFile(fileOffer{oneName, len(file)}, nil)
	require.NoError(t, err)
	require.ErrorContains(t, move(t, pipe.DialectNative, store, path), ErrBusy.Error())
	require.Contains(t, tree(t, dir), partOf(oneName), "it belongs to the other")
	p.abandon(false)
	require.NoError(t, move(t, pipe.DialectNative, store, path))
}

// half sends the header of a file to store through a new pipe, which it returns still open. got
// receives the result of Receive, which is called with ctx.
func half(t *testing.T, dialect pipe.Dialect, store *Store, ctx context.Context) (sender *pipe.Pipe, got <-chan error) {
	t.Helper()
	sender, receiver := ends(t, dialect)
	got = startReceive(ctx, store, receiver, NoWatcher{})
	s := &script{t, sender, heap("one", 5, 7)}
	s.offers(fileOffer{oneName, len(s.file)})
	s.goodHead(0)
	return sender, got
}

// TestSameNameAtOnce checks that a transfer of a file that another transfer is receiving is
// rejected, also if the names differ by case only, and is accepted once that transfer has ended.
func TestSameNameAtOnce(t *testing.T) {
	path, _ := one(t)
	upper := filepath.Join(t.TempDir(), "ONE.safetensors")
	writeFile(t, upper, heap("one", 5, 7))
	store, dir := openStore(t, StoreOptions{MaxSenders: 2, Overwrite: true})
	first, got := half(t, pipe.DialectNative, store, t.Context())
	require.ErrorContains(t, move(t, pipe.DialectNative, store, path), "one.safetensors: is being received by another transfer")
	require.ErrorContains(t, move(t, pipe.DialectNative, store, upper), "ONE.safetensors: is being received by another transfer")
	first.Abort(nil)
	require.Error(t, testwait.Finish(t, got))
	require.Empty(t, tree(t, dir))
	require.NoError(t, move(t, pipe.DialectNative, store, path))
}

func TestTooManySenders(t *testing.T) {
	path, _ := one(t)
	store, _ := openStore(t, StoreOptions{MaxSenders: 1})
	first, got := half(t, pipe.DialectNative, store, t.Context())
	require.ErrorContains(t, move(t, pipe.DialectNative, store, path), "1 senders are being served; try again later")
	first.Abort(nil)
	require.Error(t, testwait.Finish(t, got))
	require.NoError(t, move(t, pipe.DialectNative, store, path))
}

var errEvening = errors.New("it is evening")

// TestReceiverInterrupted checks that a receiver whose context ends sends the cause to the sender,
// returns it, and leaves no files.
func TestReceiverInterrupted(t *testing.T) { eachDialect(t, testReceiverInterrupted) }

func testReceiverInterrupted(t *testing.T, dialect pipe.Dialect) {
	store, dir := openStore(t, StoreOptions{})
	ctx, cancel := context.WithCancelCause(t.Context())
	sender, got := half(t, dialect, store, ctx)
	cancel(errEvening)
	require.Equal(t, errEvening.Error(), fault(t, sender).Text)
	sender.Close()
	require.ErrorIs(t, testwait.Finish(t, got), errEvening)
	require.Empty(t, tree(t, dir))
}

// TestSenderInterrupted checks that a sender whose context ends returns the cause and sends it to
// the receiver, which leaves no files.
func TestSenderInterrupted(t *testing.T) { eachDialect(t, testSenderInterrupted) }

func testSenderInterrupted(t *testing.T, dialect pipe.Dialect) {
	path := filepath.Join(t.TempDir(), oneName)
	writeFile(t, path, heap("big", 30<<20, 30<<20))
	list, err := Gather([]string{path}, false)
	require.NoError(t, err)
	store, dir := openStore(t, StoreOptions{})
	sender, receiver := ends(t, dialect)
	got := startReceive(t.Context(), store, receiver, NoWatcher{})
	ctx, cancel := context.WithCancelCause(t.Context())
	err = Send(ctx, sender, list, SendOptions{}, &log{onAccepted: func() { cancel(errEvening) }})
	require.ErrorIs(t, err, errEvening)
	require.ErrorContains(t, testwait.Finish(t, got), errEvening.Error())
	require.NotContains(t, tree(t, dir), oneName)
}

func TestRefuse(t *testing.T) {
	sender, receiver := ends(t, pipe.DialectNative)
	refused := testwait.Start(func() error { Reject(receiver, errEvening); return nil })
	require.Equal(t, errEvening.Error(), fault(t, sender).Text)
	sender.Close()
	require.NoError(t, testwait.Finish(t, refused))
}
