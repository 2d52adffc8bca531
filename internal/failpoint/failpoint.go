// Package failpoint kills a process at a chosen point of its work. [Here] is called at each such
// point: before an operation that a peer can see, or a system call. A test counts the points that a
// process passes, and then repeats the process once for each of them and has it killed there, as by
// SIGKILL.
//
// That works in builds with the tag "invariants", in processes with the environment variable
// [Variable]. In other builds Here is empty and costs nothing.
package failpoint

// Variable is the environment variable with the number of the point, counted from 1, at which the
// process kills itself. With 0 points are only counted.
const Variable = "TENSORPIPE_FAILPOINT"
