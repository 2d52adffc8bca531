package quota

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }
