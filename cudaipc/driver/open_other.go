//go:build nocuda || !linux || !(amd64 || arm64)

package driver

// Open returns a [*NotViableError], because this program was built without CUDA: with the tag
// nocuda, or for a system on which libcuda is not loaded at run time.
func Open(string) (Driver, error) {
	return nil, &NotViableError{Reason: "this program was built without CUDA (for CUDA: linux on amd64 or arm64, without the build tag nocuda)"}
}
