package aten_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/aten"
)

func TestParse(t *testing.T) {
	s, err := aten.Parse("aten::f.g(Tensor(a -> *) self, int[2]? size=1, *, Scalar? x=None, float p=1, str s='hi', SymInt[] l=[1, -2], bool b=True) -> (Tensor(a)[] parts, int)")
	require.NoError(t, err)
	require.Equal(t, &aten.Schema{
		Name: "aten::f", Overload: "g",
		Args: []aten.Arg{
			{Name: "self", Type: aten.Type{Kind: aten.Tensor, Alias: "a -> *"}},
			{Name: "size", Type: aten.Type{Kind: aten.Int, List: true, Size: 2, Optional: true}, HasDefault: true, Default: []int64{1, 1}},
			{Name: "x", Type: aten.Type{Kind: aten.Scalar, Optional: true}, HasDefault: true, KeywordOnly: true},
			{Name: "p", Type: aten.Type{Kind: aten.Float}, HasDefault: true, Default: 1.0, KeywordOnly: true},
			{Name: "s", Type: aten.Type{Kind: aten.Str}, HasDefault: true, Default: "hi", KeywordOnly: true},
			{Name: "l", Type: aten.Type{Kind: aten.Int, List: true}, HasDefault: true, Default: []int64{1, -2}, KeywordOnly: true},
			{Name: "b", Type: aten.Type{Kind: aten.Bool}, HasDefault: true, Default: true, KeywordOnly: true},
		},
		Results: []aten.Result{{Name: "parts", Type: aten.Type{Kind: aten.Tensor, Alias: "a", List: true}}, {Type: aten.Type{Kind: aten.Int}}},
	}, s)
	require.Equal(t, `aten::f.g(Tensor(a -> *) self, int[2]? size=[1, 1], *, Scalar? x=None, float p=1.0, str s="hi", int[] l=[1, -2], bool b=True) -> (Tensor(a)[] parts, int)`, s.String())
	s, err = aten.Parse("x::nothing() -> ()")
	require.NoError(t, err)
	require.Equal(t, "x::nothing() -> ()", s.String())
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "want a name at byte 0",
		"add() -> Tensor":                      "want a name with its namespace, as aten::add, at byte 3",
		"aten::add":                            `want "(" at byte 9`,
		"aten::add(":                           "want a name at byte 10",
		"aten::add(Thing x) -> Tensor":         "want a type",
		"aten::add(int) -> Tensor":             "want a name at byte 13",
		"aten::add(int x, int x) -> Tensor":    "want another name than x",
		"aten::add(int x=1.5) -> Tensor":       "want a value of int at byte 16",
		"aten::add(int x=None) -> Tensor":      "want a value of int",
		"aten::add(int x=nan) -> Tensor":       "want a value",
		"aten::add(int[] x=[1.5]) -> Tensor":   "want an int of a short list",
		"aten::add(int[0] x) -> Tensor":        "want the size of a list",
		"aten::add(int[1000000] x) -> Tensor":  "want the size of a list",
		"aten::add(Tensor(a x) -> Tensor":      "want a name",
		"aten::add(str x='a) -> Tensor":        `want "'"`,
		"aten::add(str x='a\"') -> Tensor":     "want a text without quotes",
		"aten::add(int x)":                     `want "->"`,
		"aten::add(int x) -> Tensor trailing":  "want the end",
		"aten::add(int x) -> (Tensor":          `want ")"`,
		"aten::add(*, int x, *, int y) -> int": "want a name",
		"aten::" + strings.Repeat("x", 1<<20):  "want no more at byte 4096",
	} {
		_, err := aten.Parse(text)
		var schema *aten.SchemaError
		require.ErrorAs(t, err, &schema, text)
		require.ErrorContains(t, err, want)
	}
	require.Panics(t, func() { aten.MustParse("nonsense") })
}

// FuzzParse parses arbitrary text. Parse must return a *SchemaError, or a schema that is equal
// after printing and parsing it again.
func FuzzParse(f *testing.F) {
	f.Add("aten::f.g(Tensor(a -> *) self, int[2]? size=1, *, Scalar? x=None, float p=1, str s='hi', int[] l=[1, -2]) -> (Tensor(a)[] parts, int)")
	table := aten.Default()
	for _, name := range table.Names() {
		all, err := table.Lookup(name)
		require.NoError(f, err)
		f.Add(all[0].Schema.String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := aten.Parse(text)
		if err != nil {
			var schema *aten.SchemaError
			require.ErrorAs(t, err, &schema)
			return
		}
		printed := s.String()
		if len(printed) > 4096 { // a list may be longer printed than parsed
			return
		}
		again, err := aten.Parse(printed)
		require.NoError(t, err, printed)
		require.Equal(t, s, again)
	})
}
