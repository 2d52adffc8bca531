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

// settingsContext is a context with settings.
type settingsContext struct {
	context.Context
	settings settings
}

// with returns ctx with its settings, for the caller to change them.
func with(ctx context.Context) *settingsContext { return &settingsContext{ctx, *settingsOf(ctx)} }

// Value implements context.Context.
func (c *settingsContext) Value(key any) any {
	if key == any(settingsKey{}) {
		return &c.settings
	}
	return c.Context.Value(key)
}

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
	c := with(ctx)
	c.settings.engine = e
	return c
}

// EngineOf returns the engine with which operators of ctx compute.
func EngineOf(ctx context.Context) *ops.Engine { return engineOf(ctx) }

func engineOf(ctx context.Context) *ops.Engine { return settingsOf(ctx).engine }

// NoGrad returns a context in which operators record no graph: their results require no gradient.
func NoGrad(ctx context.Context) context.Context {
	c := with(ctx)
	c.settings.noGrad = true
	return c
}

// IsGradEnabled reports whether operators of ctx record the graph.
func IsGradEnabled(ctx context.Context) bool { return !settingsOf(ctx).noGrad }
