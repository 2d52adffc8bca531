package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
)

// AllowAnyTracer reaches the catalogs of both processes.
func TestAnyTracerReachesTheCatalog(t *testing.T) {
	for _, allow := range []bool{false, true} {
		var got Tuning
		_, err := Catalog(func(t Tuning) tensorpipe.Profile { got = t; return defaultCatalog(t) }).profile(Spec{AllowAnyTracer: allow})
		require.NoError(t, err)
		require.Equal(t, allow, got.AllowAnyTracer)
	}
}
