// Package samehost tests the channels of package cudaipc between real processes of one machine, through
// pipes, on the simulated driver.
package samehost
