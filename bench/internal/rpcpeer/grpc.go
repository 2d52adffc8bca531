package rpcpeer

import (
	"context"
	"path/filepath"
)

// GRPC builds the program on grpc-go, into folder. It takes TCP and Unix. The error
// matches [errors.ErrUnsupported] where the sources, or the modules that they need,
// cannot be had.
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
