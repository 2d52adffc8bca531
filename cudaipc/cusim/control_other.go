//go:build !linux || !(amd64 || arm64)

package cusim

// Open returns a [*MissingError]: the simulator runs on Linux, on amd64 and arm64.
func Open(string) (*Control, error) {
	return nil, &MissingError{notSupported}
}
