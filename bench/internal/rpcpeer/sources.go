package rpcpeer

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "github.com/tensorpipe-go/tensorpipe"

// sourcesOf finds a folder of bench/peers, which is there where this runs within a
// clone: nested modules are no part of what users download.
func sourcesOf(ctx context.Context, peer, folder string) (string, error) {
	root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", missing(ctx, peer, root, err)
	}
	path := filepath.Join(root, "bench", "peers", folder)
	if _, err := os.Stat(path); err != nil {
		return "", missing(ctx, peer, "", err)
	}
	return path, nil
}

// goCommand runs the go command in a folder, and returns what it printed: on stderr
// if it failed.
func goCommand(ctx context.Context, folder string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return strings.TrimSpace(stderr.String()), err
	}
	return strings.TrimSpace(stdout.String()), nil
}

// missing is the error of a peer that cannot be had, for a reason that is the last
// line of a text or, without one, err. That somebody gave up is no such reason.
func missing(ctx context.Context, peer, text string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	text = strings.TrimSpace(text)
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if text == "" {
		text = err.Error()
	}
	return &MissingError{peer, text}
}
