package driver_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver/drivertest"
)

func TestConformance(t *testing.T) {
	lib := cusim.Library(t)
	drivertest.Run(t, func() (driver.Driver, error) { return driver.Open(lib) })
}
