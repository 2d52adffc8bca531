/* Control functions of the simulator, for tests. Each may be called from any thread, also while
   calls of the driver are blocked. They act on the calling process. */
#ifndef CUSIM_H
#define CUSIM_H

#include <stdint.h>

#include "cuda_abi.h"

#pragma GCC visibility push(default)

/* Sets an option. name is that of an environment variable of the simulator, such as "CUSIM_FAIL";
   a null value or "" resets it. Options of devices have no effect after cuInit. Returns 0, or -1 if
   there is no such option or the value is invalid. */
int cusim_set(const char *name, const char *value);

/* Holds back the work of all streams: calls enqueue work as usual, and none of it begins. Work that
   has begun ends as usual. */
void cusim_hold_all(void);

/* Ends cusim_hold_all and all calls of cusim_hold. */
void cusim_release_all(void);

/* Holds back the work of one stream, and ends that. They return 0, or -1 if no such stream has been
   created or its work is already done. The null stream is that of the current context. */
int cusim_hold(CUstream stream);
int cusim_release(CUstream stream);

/* Returns the number of operations of a stream that are not done, or -1 as cusim_hold does. */
int64_t cusim_queued(CUstream stream);

/* Returns the number of calls of a function of the driver, such as "cuMemcpyAsync", including those
   that returned an error. "" stands for all functions together. */
uint64_t cusim_calls(const char *function);

/* Returns the number of calls that wait for a device: synchronizations, releases of memory, and
   copies from or to pageable memory. They count from their beginning. */
uint64_t cusim_blocking(void);

/* Returns the number of reported misuses. */
uint64_t cusim_misuse(void);

/* Writes the text of the last reported misuse to text, cut to size bytes with the terminating zero;
   "" if there was none. */
void cusim_last_misuse(char *text, size_t size);

/* Sets a text that follows the numbered calls of the calling thread in the trace, after a tab; "" for none.
   A text of 4000 bytes or more is cut, and ends with " ...". */
void cusim_set_site(const char *text);

#pragma GCC visibility pop

#endif
