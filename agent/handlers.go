package agent

import (
	"fmt"
	"strings"
)

// ownTypes is how the types of messages begin that the agent itself serves.
const ownTypes = "agent."

// handlers is what a worker serves. It does not change once it is made.
type handlers struct {
	funcs map[string]entry
	types map[string]entry
}

func newHandlers(c *Config) (*handlers, error) {
	h := &handlers{funcs: map[string]entry{}, types: map[string]entry{}}
	for _, f := range c.Funcs {
		switch _, twice := h.funcs[f.entry.name]; {
		case f.err != nil:
			return nil, f.err
		case twice:
			return nil, fmt.Errorf("%w: function %s is served twice", ErrConfig, f.entry.name)
		case f.entry.name == "" || len(f.entry.name) > maxName:
			return nil, fmt.Errorf("%w: the name of a function has 1 to %d bytes, got %.50q", ErrConfig, maxName, f.entry.name)
		}
		h.funcs[f.entry.name] = f.entry
	}
	for typ, handler := range c.Handlers {
		if typ == "" || len(typ) > maxName || handler == nil {
			return nil, fmt.Errorf("%w: handler of type %.50q: want a name of 1 to %d bytes, and a handler", ErrConfig, typ, maxName)
		}
		if strings.HasPrefix(typ, ownTypes) {
			return nil, fmt.Errorf("%w: handler of type %s: types that begin with %s are the agent's own", ErrConfig, typ, ownTypes)
		}
		h.types[typ] = entry{typ: typ, Handler: handler, short: isShort(handler)}
	}
	if _, taken := h.types[opType]; taken {
		return nil, fmt.Errorf("%w: handler of type %s: what serves operators is Operators", ErrConfig, opType)
	}
	h.types[opType] = entry{typ: opType, Handler: opHandler{c.Operators}}
	return h, nil
}

// ShortHandler is a Handler whose tasks return at once, as functions that are Short.
type ShortHandler interface {
	Handler

	// Short does nothing.
	Short()
}

func isShort(h Handler) bool {
	_, ok := h.(ShortHandler)
	return ok
}

// find is the handler of a request. The names are not kept.
func (h *handlers) find(typ, name []byte) (entry, bool) {
	if len(typ) == 0 {
		e, ok := h.funcs[string(name)]
		return e, ok
	}
	if string(typ) == invokeType {
		e, ok := h.funcs[string(name)]
		e.typ, e.Handler = invokeType, e.invoked
		return e, ok
	}
	e, ok := h.types[string(typ)]
	e.name = string(name)
	return e, ok
}
