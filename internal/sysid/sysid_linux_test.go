package sysid

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBootID(t *testing.T) {
	id, err := BootID()
	require.NoError(t, err)
	require.Regexp(t, `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`, id)
	again, err := BootID()
	require.NoError(t, err)
	require.Equal(t, id, again)
}

func TestBootIDFrom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "boot_id")
	_, err := bootIDFrom(path)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, path)

	for text, want := range map[string]string{"abc": "abc", "abc\n": "abc", "abc\ndef\n": "abc"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		id, err := bootIDFrom(path)
		require.NoError(t, err)
		require.Equal(t, want, id)
	}
	require.NoError(t, os.WriteFile(path, []byte("\n"), 0o600))
	_, err = bootIDFrom(path)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// The identifier of each namespace contains the inode that the kernel prints in the link itself, as
// in pid:[4026531836].
func TestNamespaceIDs(t *testing.T) {
	for _, ns := range []Namespace{PID, User, Net} {
		id, err := NamespaceID(ns)
		require.NoError(t, err)
		require.Regexp(t, `^[0-9a-f]+_[0-9a-f]+$`, id)

		link, err := os.Readlink("/proc/self/ns/" + string(ns))
		require.NoError(t, err)
		decimal := strings.TrimSuffix(strings.TrimPrefix(link, string(ns)+":["), "]")
		inode, err := strconv.ParseUint(decimal, 10, 64)
		require.NoError(t, err)
		_, hex, _ := strings.Cut(id, "_")
		require.Equal(t, strconv.FormatUint(inode, 16), hex)
	}
}

// NamespaceID returns the identifier that the program stat prints for the same namespace.
func TestNamespaceIDAgreesWithStat(t *testing.T) {
	stat, err := exec.LookPath("stat")
	if err != nil {
		t.Skip("no stat program to compare with")
	}
	out, err := exec.Command(stat, "-L", "-c", "%D_%i", "/proc/self/ns/pid").Output()
	require.NoError(t, err)
	dev, decimal, _ := strings.Cut(strings.TrimSpace(string(out)), "_")
	inode, err := strconv.ParseUint(decimal, 10, 64)
	require.NoError(t, err)
	id, err := NamespaceID(PID)
	require.NoError(t, err)
	require.Equal(t, dev+"_"+strconv.FormatUint(inode, 16), id)
}

func TestNamespaceIDFrom(t *testing.T) {
	dir := t.TempDir()
	file, dangling := filepath.Join(dir, "file"), filepath.Join(dir, "dangling")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Symlink(filepath.Join(dir, "nowhere"), dangling))
	for path, why := range map[string]string{
		filepath.Join(dir, "missing"): "no such file",
		file:                          "no symbolic link",
		dangling:                      "stat",
	} {
		_, err := namespaceIDFrom(path)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, why)
	}
}

func TestProcess(t *testing.T) {
	name, err := Process()
	require.NoError(t, err)
	boot, err := BootID()
	require.NoError(t, err)
	ns, err := NamespaceID(PID)
	require.NoError(t, err)
	require.Equal(t, boot+"_"+ns+"_"+strconv.Itoa(os.Getpid()), name)
}
