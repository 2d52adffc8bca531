package wire

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// TestDocumentedSchemas tests that docs/wire.md contains the schema of each message type, as
// structSchema writes it.
func TestDocumentedSchemas(t *testing.T) {
	page, err := os.ReadFile("../../../docs/wire.md")
	require.NoError(t, err)
	compact := strings.Join(strings.Fields(string(page)), " ")
	for _, v := range []any{
		Hello{}, Identity{}, Answer{}, Proof{}, Done{}, Refusal{}, Route{}, Route{}.From,
		Status{}, PipeStatus{}, Metric{}, Member{}, DeviceCount{}, DeviceMap{},
		GroupRequest{}, GroupReply{}, GroupFailure{}, Packed{}, Workload{},
	} {
		require.Contains(t, compact, structSchema(reflect.TypeOf(v)))
	}
}

// structSchema returns the schema of the struct type t, its name and its fields with their types,
// in the notation of docs/wire.md.
func structSchema(t reflect.Type) string {
	var fields []string
	last := ""
	for _, f := range reflect.VisibleFields(t) {
		if f.Name == "_" {
			continue
		}
		name := f.Name
		if tag := f.Tag.Get("tensorpipe"); tag != "" {
			name = tag
		}
		if typ := typeName(f.Type); typ == last {
			fields[len(fields)-1] = strings.TrimSuffix(fields[len(fields)-1], " "+typ) + ", " + name + " " + typ
		} else {
			fields, last = append(fields, name+" "+typ), typ
		}
	}
	return typeName(t) + " {" + strings.Join(fields, "; ") + "}"
}

func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[*tensor.Tensor]():
		return "tensor"
	case t == reflect.TypeFor[[]byte]():
		return "bytes"
	case t.Kind() == reflect.Array:
		return "[16]byte"
	case t.Kind() == reflect.Pointer:
		return "*" + typeName(t.Elem())
	case t.Kind() == reflect.Slice:
		return "[]" + typeName(t.Elem())
	case t.Kind() == reflect.Struct:
		if f, ok := t.FieldByName("_"); ok {
			return f.Tag.Get("tensorpipe")
		}
		return t.String()
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64:
		return "uint"
	case t.Kind() == reflect.Int64:
		return "int"
	default:
		return t.Kind().String()
	}
}
