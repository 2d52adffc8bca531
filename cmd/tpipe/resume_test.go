package main

import (
	"encoding/json"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// fileBytes is the tensors of each of the files that tests interrupt: so many that the transfer of
// the file does not end before the test has seen that it has begun.
const fileBytes = 200 << 20

// randomFolder creates a folder of three files of fileBytes, which begin with random bytes, and of a
// last file of 2 GiB, so that a transfer does not end before a test interrupts it. It returns the
// path.
func randomFolder(t *testing.T) (folder string) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), "weights")
	require.NoError(t, os.Mkdir(folder, 0o777))
	random := rand.NewChaCha8([32]byte{1})
	for _, name := range []string{"a", "b", "c"} {
		path := filepath.Join(folder, name+".safetensors")
		sparseFile(t, path, fileBytes/(20<<20), 20<<20)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		data := make([]byte, 40<<20)
		_, _ = random.Read(data)
		info, err := f.Stat()
		require.NoError(t, err)
		_, err = f.WriteAt(data, info.Size()-fileBytes)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	sparseFile(t, filepath.Join(folder, "d.safetensors"), 128, 16<<20)
	return folder
}

// withoutLast replaces the last file of folder, which randomFolder has created, by a small one, and
// returns the contents of all files.
func withoutLast(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	sparseFile(t, filepath.Join(folder, "d.safetensors"), 1, 10)
	return safetensorsIn(t, folder)
}

// sendResumed sends folder with -resume to address, and returns the result.
func sendResumed(t *testing.T, address, folder string) *transfer {
	t.Helper()
	stdout, stderr, code := tpipe(t, "send", "-resume", "-json", "-to", address, folder)
	require.Zero(t, code, stderr)
	var r transfer
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	return &r
}

// sendPart starts a send of folder to recv at address, and returns it when recv has written n bytes of
// the part file of name, a file of the folder. The sender is stopped by a signal until the test calls
// resume.
func sendPart(t *testing.T, recv *process, address, folder, name string, n int64, flags ...string) *process {
	t.Helper()
	send := start(t, append([]string{"send", "-memory", "8MiB", "-to", address, folder}, flags...)...)
	recv.awaitBytes("weights/"+name+".safetensors", n)
	testwait.StopProcess(t, send.cmd.Process)
	return send
}

// TestResumeAfterKill checks that a folder whose sender or receiver was killed during each of its
// files arrives with -resume, and that complete chunks are not sent again.
func TestResumeAfterKill(t *testing.T) {
	for i, end := range []string{"sender", "receiver"} {
		for done, name := range []string{"a", "b", "c"} {
			if !race.Includes(3*i+done, 6, 3) {
				continue
			}
			t.Run(end+" during "+name, func(t *testing.T) {
				out := t.TempDir()
				recv, address := startRecv(t, out)
				folder := randomFolder(t)
				send := sendPart(t, recv, address, folder, name, 8<<20)
				if end == "sender" {
					send.kill()
					recv.stderr.await(t, "tpipe recv: from ")
				} else {
					recv.kill()
					send.resume()
					_, _, code := send.wait()
					require.Equal(t, exitFailed, code)
					recv, address = startRecv(t, out)
				}
				want := withoutLast(t, folder)
				r := sendResumed(t, address, folder)
				require.GreaterOrEqual(t, r.Found, done*fileBytes+8<<20)
				require.Equal(t, len(want), r.Files)
				recv.signal(syscall.SIGTERM)
				recv.wait()
				requireSame(t, want, safetensorsIn(t, filepath.Join(out, "weights")))
			})
		}
	}
}

// TestResumeAfterChanges checks that -resume sends a file again whose source has changed since it was
// interrupted, from its first changed chunk on, and also a part file that was corrupted.
func TestResumeAfterChanges(t *testing.T) {
	for what, change := range map[string]func(source, part string) string{
		"source": func(source, _ string) string { return source },
		"part":   func(_, part string) string { return part },
	} {
		t.Run(what, func(t *testing.T) {
			folder := randomFolder(t)
			out := t.TempDir()
			recv, address := startRecv(t, out)
			send := sendPart(t, recv, address, folder, "b", 12<<20)
			send.kill()
			recv.stderr.await(t, "tpipe recv: from ")
			part := filepath.Join(out, "weights", ".b.safetensors.tpipe-part")
			f, err := os.OpenFile(change(filepath.Join(folder, "b.safetensors"), part), os.O_RDWR, 0)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte("changed"), 9<<20) // in the third chunk
			require.NoError(t, err)
			require.NoError(t, f.Close())
			want := withoutLast(t, folder)
			r := sendResumed(t, address, folder)
			for _, f := range r.InPlace {
				if strings.HasSuffix(f.Name, "b.safetensors") {
					require.Equal(t, 8<<20, f.Found)
				}
			}
			recv.signal(syscall.SIGTERM)
			recv.wait()
			requireSame(t, want, safetensorsIn(t, filepath.Join(out, "weights")))
		})
	}
}

// awaitBytes blocks until the recv p has written at least n bytes of the part file of name, or has
// completed it, and fails the test after processTimeout.
func (p *process) awaitBytes(name string, n int64) {
	p.t.Helper()
	path := filepath.Join(p.out(), filepath.Dir(name), "."+filepath.Base(name)+".tpipe-part")
	require.Eventually(p.t, func() bool {
		info, err := os.Stat(path)
		return err == nil && info.Size() >= n
	}, processTimeout, 100_000, path)
}

// TestInterruptedSendKnows checks that after SIGINT send and recv report the same files and part
// files, that the receiver has exactly these, and that -resume sends the rest.
func TestInterruptedSendKnows(t *testing.T) {
	for _, name := range race.Pick([]string{"a", "b", "c"}, []string{"b"}) {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			recv := start(t, "recv", "-json", "-out", out)
			recv.stderr.await(t, "\n")
			address := strings.TrimSpace(strings.TrimPrefix(recv.stderr.String(), "listening on uv://"))
			folder := randomFolder(t)
			send := sendPart(t, recv, address, folder, name, 8<<20, "-json")
			send.signal(os.Interrupt)
			send.resume()
			stdout, stderr, code := send.wait()
			require.Equal(t, exitInterrupted, code, stderr)
			require.Equal(t, "tpipe send: interrupted\n", stderr)
			var sent, received transfer
			require.NoError(t, json.Unmarshal([]byte(stdout), &sent))
			objects := json.NewDecoder(recv.lines)
			require.NoError(t, objects.Decode(&received))
			require.ElementsMatch(t, received.InPlace, sent.InPlace)
			require.Equal(t, received.Parts, sent.Parts)
			require.Len(t, sent.Parts, 1)
			files := map[string]int64{}
			for _, f := range sent.InPlace {
				files[f.Name] = int64(f.Bytes)
			}
			for _, p := range sent.Parts {
				files[filepath.Dir(p.Name)+"/."+filepath.Base(p.Name)+".tpipe-part"] = int64(p.Bytes)
			}
			require.Equal(t, files, sizesIn(t, out))

			want := withoutLast(t, folder)
			r := sendResumed(t, address, folder)
			require.NotZero(t, r.Found)
			require.NoError(t, objects.Decode(&received))
			recv.signal(syscall.SIGTERM)
			require.NoError(t, recv.cmd.Wait())
			recv.ended = recv.late.Stop()
			requireSame(t, want, safetensorsIn(t, filepath.Join(out, "weights")))
		})
	}
}

// sizesIn returns the sizes of the files below dir, by their paths relative to dir.
func sizesIn(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	sizes := map[string]int64{}
	require.NoError(t, fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sizes[p] = info.Size()
		}
		return err
	}))
	return sizes
}

// TestSendBeforeRecv checks that a send that starts before the recv waits for it, and that -timeout
// bounds the wait.
func TestSendBeforeRecv(t *testing.T) {
	address := freeport.Addr(t)
	send := start(t, "send", "-to", address, "testdata")
	send.stderr.await(t, "tpipe send: waiting up to 30s for a receiver at "+address)
	out := t.TempDir()
	recv := start(t, "recv", "-once", "-out", out, "-listen", address)
	_, stderr, code := send.wait()
	require.Zero(t, code, stderr)
	recv.wait()
	require.Len(t, safetensorsIn(t, out), 1)

	_, stderr, code = tpipe(t, "send", "-to", address, "-timeout", "100ms", "testdata")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "connection refused")
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
}
