/* Two processes. The parent starts this program again as the child of the scenario; they exchange
   messages through pipes. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "replay.h"

enum { WORDS = 4096 };

struct message {
    CUipcMemHandle memory;
    CUipcEventHandle event;
};

struct child {
    pid_t pid;
    int to;
    int from;
};

static struct child start(const char *scenario)
{
    int in[2];
    int out[2];
    EXPECT(pipe(in) == 0 && pipe(out) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[1]);
        close(out[0]);
        execl("/proc/self/exe", "replay", scenario, (char *)NULL);
        _exit(3);
    }
    EXPECT(pid > 0);
    close(in[0]);
    close(out[1]);
    return (struct child){.pid = pid, .to = in[1], .from = out[0]};
}

static void send_message(int fd, const struct message *m) { EXPECT(write(fd, m, sizeof *m) == sizeof *m); }

static void receive_message(int fd, struct message *m)
{
    size_t n = 0;
    while (n < sizeof *m) {
        ssize_t got = read(fd, (char *)m + n, sizeof *m - n);
        EXPECT(got > 0);
        n += (size_t)got;
    }
}

static void expect_exit(struct child *c)
{
    int status;
    EXPECT(close(c->to) == 0);
    EXPECT(waitpid(c->pid, &status, 0) == c->pid);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The parent fills memory late; the child copies it once the parent's event is done, and the parent
   overwrites it once the child's event is done. */
void scenario_ipc(void)
{
    struct child c = start("child_ipc");
    use_device(0);
    EXPECT(cusim_set("CUSIM_DELAY_US", "20000") == 0);
    CUstream s = new_stream();
    CUdeviceptr p = new_memory(4 * WORDS);
    CUevent filled = new_event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    CUevent copied;
    struct message m;
    OK(cuIpcGetMemHandle(&m.memory, p + 100)); /* of the whole allocation */
    OK(cuIpcGetEventHandle(&m.event, filled));
    OK(cuMemsetD32Async(p, 42, WORDS, s));
    OK(cuEventRecord(filled, s));
    send_message(c.to, &m);
    receive_message(c.from, &m);
    OK(cuIpcOpenEventHandle(&copied, m.event));
    OK(cuStreamWaitEvent(s, copied, 0));
    OK(cuMemsetD32Async(p, 43, WORDS, s));
    OK(cuStreamSynchronize(s));
    expect_exit(&c);
    OK(cuMemFree_v2(p));
    EXPECT(cusim_misuse() == 0);
}

void child_ipc(void)
{
    use_device(0);
    EXPECT(cusim_set("CUSIM_DELAY_US", "20000") == 0);
    struct message m;
    CUdeviceptr from;
    CUdeviceptr again;
    CUevent filled;
    receive_message(STDIN_FILENO, &m);
    OK(cuIpcOpenMemHandle_v2(&from, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle_v2(&again, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT(again == from);
    OK(cuIpcCloseMemHandle(again));
    OK(cuIpcOpenEventHandle(&filled, m.event));
    CUstream s = new_stream();
    CUdeviceptr to = new_memory(4 * WORDS);
    CUevent copied = new_event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    OK(cuStreamWaitEvent(s, filled, 0));
    OK(cuMemcpyAsync(to, from, 4 * WORDS, s));
    OK(cuEventRecord(copied, s));
    OK(cuIpcGetEventHandle(&m.event, copied));
    send_message(STDOUT_FILENO, &m);
    OK(cuStreamSynchronize(s));
    EXPECT(count_wrong(to, WORDS, 42) == 0);
    OK(cuIpcCloseMemHandle(from));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(from));
    char end;
    EXPECT(read(STDIN_FILENO, &end, 1) == 0); /* the parent has waited for the event */
}

/* The parent frees memory and destroys an event that the child has open. */
void scenario_ipc_misuse(void)
{
    struct child c = start("child_ipc_misuse");
    use_device(0);
    CUdeviceptr p = new_memory(4 * WORDS);
    CUdeviceptr other;
    CUevent e = new_event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    struct message m;
    OK(cuIpcGetMemHandle(&m.memory, p));
    OK(cuIpcGetEventHandle(&m.event, e));
    MISUSE(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&other, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    send_message(c.to, &m);
    receive_message(c.from, &m);
    MISUSE(CUDA_SUCCESS, cuMemFree_v2(p));
    OK(cuEventDestroy_v2(e));
    send_message(c.to, &m);
    receive_message(c.from, &m);

    /* The descriptors of the handles are those of other memory and another event. */
    OK(cuIpcGetMemHandle(&m.memory, new_memory(4 * WORDS)));
    e = new_event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    send_message(c.to, &m);
    receive_message(c.from, &m);
    expect_exit(&c);
}

/* The parent destroys an event and frees memory that its own queued work still uses. */
void scenario_ipc_destroyed(void)
{
    struct child c = start("child_ipc_destroyed");
    use_device(1);
    CUstream other = new_stream();
    CUdeviceptr to = new_memory(4);
    use_device(0);
    CUstream s = new_stream();
    CUdeviceptr p = new_memory(4);
    CUevent e = new_event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    struct message m;
    OK(cuIpcGetMemHandle(&m.memory, p));
    OK(cuIpcGetEventHandle(&m.event, e));
    EXPECT(cusim_hold(other) == 0);
    OK(cuMemcpyAsync(to, p, 4, other));
    OK(cuMemFree_v2(p));
    EXPECT(cusim_hold(s) == 0);
    OK(cuEventRecord(e, s));
    OK(cuEventDestroy_v2(e));
    send_message(c.to, &m);
    expect_exit(&c);
}

void child_ipc_destroyed(void)
{
    use_device(0);
    struct message m;
    CUdeviceptr p;
    CUevent e;
    receive_message(STDIN_FILENO, &m);
    RESULT(CUDA_ERROR_MAP_FAILED, cuIpcOpenMemHandle_v2(&p, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    RESULT(CUDA_ERROR_MAP_FAILED, cuIpcOpenEventHandle(&e, m.event));
}

void child_ipc_misuse(void)
{
    use_device(1); /* not the device of the memory */
    struct message m;
    CUdeviceptr p;
    CUdeviceptr again;
    CUevent e;
    uint32_t word;
    receive_message(STDIN_FILENO, &m);
    EXPECT(cusim_set("CUSIM_NO_P2P", "1") == 0);
    RESULT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuIpcOpenMemHandle_v2(&p, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT(cusim_set("CUSIM_NO_P2P", "") == 0);
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle_v2(&p, m.memory, 0));
    OK(cuIpcOpenMemHandle_v2(&p, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenEventHandle(&e, m.event));
    OK(cuMemcpyDtoH_v2(&word, p, 4));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&m.memory, p)); /* only the exporter can */
    send_message(STDOUT_FILENO, &m);
    struct message end;
    receive_message(STDIN_FILENO, &end);
    RESULT(CUDA_ERROR_MAP_FAILED, cuIpcOpenEventHandle(&e, m.event));
    MISUSE(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(e));
    OK(cuEventDestroy_v2(e));
    MISUSE(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemsetD8Async(p, 1, 1, NULL));
    RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize()); /* the context has failed */
    send_message(STDOUT_FILENO, &m);
    receive_message(STDIN_FILENO, &end);
    EXPECT(memcmp(&end.memory, &m.memory, 12) == 0); /* the same process and descriptor */
    use_device(0);
    RESULT(CUDA_ERROR_MAP_FAILED, cuIpcOpenMemHandle_v2(&again, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    RESULT(CUDA_ERROR_MAP_FAILED, cuIpcOpenEventHandle(&e, m.event));
    send_message(STDOUT_FILENO, &m);
}

/* The child records an event that is never done, and is killed. */
void scenario_ipc_dead(void)
{
    struct child c = start("child_ipc_dead");
    use_device(0);
    CUstream s = new_stream();
    CUdeviceptr p;
    CUevent e;
    struct message m;
    receive_message(c.from, &m);
    OK(cuIpcOpenEventHandle(&e, m.event));
    OK(cuIpcOpenMemHandle_v2(&p, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    OK(cuStreamWaitEvent(s, e, 0));
    EXPECT(kill(c.pid, SIGKILL) == 0);
    OK(cuStreamSynchronize(s)); /* the child is not reaped yet */
    OK(cuEventQuery(e));
    EXPECT(waitpid(c.pid, NULL, 0) == c.pid);
    CUevent again;
    RESULT(CUDA_ERROR_MAP_FAILED, cuIpcOpenEventHandle(&again, m.event));
    EXPECT(count_wrong(p, 1, 7) == 0); /* memory that is open stays */
    OK(cuIpcCloseMemHandle(p));
}

void child_ipc_dead(void)
{
    use_device(0);
    CUstream s = new_stream();
    CUevent e = new_event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    CUdeviceptr p = new_memory(4);
    struct message m;
    OK(cuMemsetD32_v2(p, 7, 1));
    cusim_hold_all();
    OK(cuMemsetD32Async(p, 8, 1, s));
    OK(cuEventRecord(e, s));
    OK(cuIpcGetMemHandle(&m.memory, p));
    OK(cuIpcGetEventHandle(&m.event, e));
    send_message(STDOUT_FILENO, &m);
    pause();
}
