package loglines

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestLines(t *testing.T) {
	var log Lines
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			log.Logger().Warn("too late", "by", 3)
			_ = log.String() // concurrently with the other writers
		})
	}
	log.Logger().Debug("not wanted")
	wg.Wait()
	require.Equal(t, 10, strings.Count(log.String(), "msg=\"too late\" by=3\n"))
	require.NotContains(t, log.String(), "not wanted")
}
