package driver_test

import (
	"os"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver/drivertest"
)

// With TENSORPIPE_GPU=1 the driver is the real one.
func TestConformance(t *testing.T) {
	lib := ""
	if os.Getenv("TENSORPIPE_GPU") != "1" {
		lib = cusim.Library(t)
	}
	drivertest.Run(t, func() (driver.Driver, error) { return driver.Open(lib) })
}
