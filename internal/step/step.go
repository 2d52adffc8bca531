// Package step counts what a process does, and ends it in the midst of that.
// [Here] stands wherever something is done that a peer can see, or that the
// system is asked for: a test counts how often a process comes by, and then
// lets it die at each of these points in turn, as by kill -9.
//
// That is so in builds with the tag "invariants", in processes in whose
// environment [Variable] is. In other builds Here is empty and costs nothing.
package step

// Variable in the environment of a process is the number of the point, from 1
// on, at which it kills itself; 0 only counts.
const Variable = "TENSORPIPE_DIE_AT_STEP"
