package rref

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// Type returns the name of the type of the value on its owner, see codec.Namer. The first call asks
// the owner, and waits until the value exists. The error is as that of ToHere.
func (f *Ref[T]) Type(ctx context.Context, opts ...agent.CallOption) (string, error) {
	return f.get().typeName(ctx, opts)
}

// Type returns the name of the type of the value, as that of Ref does.
func (a *Any) Type(ctx context.Context, opts ...agent.CallOption) (string, error) {
	return a.get().typeName(ctx, opts)
}

// TypeAsync returns a future of what Type returns. Once one has succeeded, all calls for this copy of
// the reference return the same future.
func (f *Ref[T]) TypeAsync(ctx context.Context, opts ...agent.CallOption) *agent.Future[string] {
	return f.get().typeAsync(ctx, opts)
}

// TypeAsync returns a future of what Type returns, as that of Ref does.
func (a *Any) TypeAsync(ctx context.Context, opts ...agent.CallOption) *agent.Future[string] {
	return a.get().typeAsync(ctx, opts)
}

func (h *handle) typeAsync(ctx context.Context, opts []agent.CallOption) *agent.Future[string] {
	c, err := h.useFor("type")
	if err != nil {
		return future.Failed[string](err)
	}
	defer c.unuse()
	if known := h.typ.Load(); known != nil {
		return known
	}
	out := future.New[string]()
	base := c.refs.base
	started := c.refs.spawn(func() {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(base, func() { cancel(ErrClosed) })()
		typ, err := h.typeName(ctx, opts)
		if err != nil {
			_ = out.Fail(err)
			return
		}
		h.typ.CompareAndSwap(nil, out)
		_ = out.Set(typ)
	})
	if !started {
		_ = out.Fail(ErrClosed)
	}
	return out
}

func (h *handle) typeName(ctx context.Context, opts []agent.CallOption) (string, error) {
	c, err := h.useFor("type")
	if err != nil {
		return "", err
	}
	defer c.unuse()
	r := c.refs
	if c.isOwned() {
		ctx, cancel := r.agent.CallContext(ctx, opts...)
		defer cancel()
		v, err := c.awaitValue(ctx)
		if err != nil {
			return "", err
		}
		return v.typ, nil
	}
	r.mu.Lock()
	typ := c.typ
	r.mu.Unlock()
	if typ != "" {
		return typ, nil
	}
	if err := c.checkUsable(); err != nil {
		return "", err
	}
	ctx, stop := c.whileUsable(ctx)
	defer stop()
	typ, err = typeMessage.Call(ctx, r.agent, agent.To(c.owner.Name), "", c.fork(), opts...)
	if err != nil {
		return "", c.explain(err)
	}
	r.mu.Lock()
	c.typ = typ
	r.mu.Unlock()
	return typ, nil
}
