package delayed

import "errors"

// ErrClosed says that the kind was closed: its memory and streams are gone.
// Close it after whatever uses it.
var ErrClosed = errors.New("device kind is closed")
