//go:build linux && (amd64 || arm64)

package cusim

import (
	"fmt"

	"github.com/ebitengine/purego"
)

// Open loads the simulator from the file that [Build] or [Library] returned, unless this process has
// loaded it already. It stays loaded.
func Open(lib string) (*Control, error) {
	handle, err := purego.Dlopen(lib, purego.RTLD_NOW)
	if err != nil {
		return nil, fmt.Errorf("cusim: %w", err)
	}
	c := &Control{}
	for name, function := range map[string]any{
		"cusim_set":         &c.set,
		"cusim_hold_all":    &c.holdAll,
		"cusim_release_all": &c.releaseAll,
		"cusim_hold":        &c.hold,
		"cusim_release":     &c.release,
		"cusim_queued":      &c.queued,
		"cusim_calls":       &c.calls,
		"cusim_blocking":    &c.blocking,
		"cusim_misuse":      &c.misuse,
		"cusim_last_misuse": &c.lastMisuse,
		"cusim_set_site":    &c.setSite,
	} {
		symbol, err := purego.Dlsym(handle, name)
		if err != nil {
			return nil, fmt.Errorf("cusim: %s is not the simulator: %w", lib, err)
		}
		purego.RegisterFunc(function, symbol)
	}
	return c, nil
}
