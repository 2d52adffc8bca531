package rpcpeer

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// GRPC builds the program on grpc-go into folder, which must stay as long as the Peer is used. The Peer
// supports TCP and Unix. The error matches [errors.ErrUnsupported] if the sources or the modules that
// they need are not available; it is a *ProcessError if the build fails.
func GRPC(ctx context.Context, folder string) (*Peer, error) {
	const name = "grpc-go"
	sources, err := sourcesOf(ctx, name, "grpc")
	if err != nil {
		return nil, err
	}
	if text, err := goCommand(ctx, sources, "mod", "download"); err != nil {
		return nil, missing(ctx, name, text, err)
	}
	program := filepath.Join(folder, "grpcpeer")
	if text, err := goCommand(ctx, sources, "build", "-o", program, "."); err != nil {
		return nil, &ProcessError{Name: "go build of " + name, Stderr: text, Err: err}
	}
	return &Peer{name, []string{program}, []string{TCP, Unix}}, nil
}

// python is the interpreter for which Debian installs PyTorch.
const python = "/usr/bin/python3"

// Torch returns the Peer of PyTorch, installed as Debian's python3-torch. It supports Default and TCP.
// The error matches [errors.ErrUnsupported] if PyTorch or the sources are not available.
func Torch(ctx context.Context) (*Peer, error) {
	const name = "torch.distributed.rpc"
	sources, err := sourcesOf(ctx, name, "torchrpc")
	if err != nil {
		return nil, err
	}
	probe := exec.CommandContext(ctx, python, "-c", "import torch.distributed.rpc")
	if text, err := probe.CombinedOutput(); err != nil {
		return nil, missing(ctx, name, string(text), err)
	}
	return &Peer{name, []string{python, filepath.Join(sources, "peer.py")}, []string{Default, TCP}}, nil
}

const module = "github.com/tensorpipe-go/tensorpipe"

// sourcesOf returns the path of a folder of bench/peers, which exists only in a clone of the
// repository: nested modules are not part of a module download. The error is that of missing, with the
// name of the peer.
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

// goCommand runs the go command in a folder, "" being the current one. It returns the standard output
// or, with an error, the standard error output.
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

// missing returns a *MissingError for the named peer. Its reason is the last line of text or, if text
// is empty, err. If ctx has ended it returns the cause of ctx instead.
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
