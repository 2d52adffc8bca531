// Package flock locks files against other processes. A lock belongs to the open
// file, and ends with it: also where its process is killed.
package flock
