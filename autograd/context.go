package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops/gonumblas"
)

// settings are the settings of operators in a context.
type settings struct {
	engine *ops.Engine
	noGrad bool
}

type settingsKey struct{}

// defaultSettings are those of a context without settings.
var defaultSettings = &settings{engine: &ops.Engine{Gemm: gonumblas.Gemm{}}}

func settingsOf(ctx context.Context) *settings {
	if s, ok := ctx.Value(settingsKey{}).(*settings); ok {
		return s
	}
	return defaultSettings
}

// WithEngine returns a context whose operators compute with e. Without it they use memory of the Go
// heap, and package gonumblas for products of matrices.
func WithEngine(ctx context.Context, e *ops.Engine) context.Context {
	s := *settingsOf(ctx)
	s.engine = e
	return context.WithValue(ctx, settingsKey{}, &s)
}

// EngineOf returns the engine with which operators of ctx compute.
func EngineOf(ctx context.Context) *ops.Engine { return engineOf(ctx) }

func engineOf(ctx context.Context) *ops.Engine { return settingsOf(ctx).engine }

// NoGrad returns a context in which operators record no graph: their results require no gradient.
func NoGrad(ctx context.Context) context.Context {
	s := *settingsOf(ctx)
	s.noGrad = true
	return context.WithValue(ctx, settingsKey{}, &s)
}

// IsGradEnabled reports whether operators of ctx record the graph.
func IsGradEnabled(ctx context.Context) bool { return !settingsOf(ctx).noGrad }
