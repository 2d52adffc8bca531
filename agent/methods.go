package agent

import (
	"fmt"
	"reflect"
)

// Methods serves all exported methods of value, bound to it, by Function: each as
// prefix, a dot and its name. A method whose only result is a *Future is served by
// AsyncFunction. Several calls run at once; value takes care of that itself.
//
// Everybody in the group can call all of them. Where that is too much, give the method
// values of some to Function.
func Methods(prefix string, value any, opts ...ServeOption) Funcs {
	v := reflect.ValueOf(value)
	if !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() || v.NumMethod() == 0 {
		err := fmt.Errorf("%w: %s: want a value with exported methods, got %v", ErrConfig, prefix, describeValue(v))
		return Funcs{{entry: entry{name: prefix}, err: err}}
	}
	var all Funcs
	for i := range v.NumMethod() {
		method := v.Method(i)
		name := prefix + "." + v.Type().Method(i).Name
		all = append(all, reflected(name, method.Interface(), returnsFuture(method.Type()), opts))
	}
	return all
}
