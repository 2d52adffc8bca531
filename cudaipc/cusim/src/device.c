/* The driver and its devices. Devices are numbered as CUDA_VISIBLE_DEVICES lists them; the physical
   index is the same in all processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

enum {
    CUDA_VERSION_11_8 = 11080,
    IPC_EVENT_SUPPORTED = 125, /* CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED of CUDA 12.0 */
};

static int devices; /* visible devices, 0 before cuInit */
static int physical_of[MAX_DEVICES];

int device_count(void) { return devices; }

int device_physical(int device) { return physical_of[device]; }

int device_from_physical(int physical)
{
    for (int i = 0; i < devices; i++) {
        if (physical_of[i] == physical)
            return i;
    }
    return -1;
}

bool device_valid(int device) { return device >= 0 && device < devices; }

bool device_can_access(int device, int peer)
{
    return device != peer && !config()->no_peer && !config()->mig;
}

/* Fills physical_of from a list of indices, which ends at the first invalid one as with the real
   driver. Returns their number. */
static int parse_visible(const char *list, int total)
{
    int n = 0;
    while (n < MAX_DEVICES) {
        char *end;
        long index = strtol(list, &end, 10);
        if (end == list || index < 0 || index >= total)
            break;
        physical_of[n++] = (int)index;
        if (*end != ',')
            break;
        list = end + 1;
    }
    return n;
}

static CUresult init(unsigned flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (devices > 0)
        return CUDA_SUCCESS;
    const struct config *c = config();
    int total = c->no_device ? 0 : c->devices;
    int visible = 0;
    if (strcmp(c->visible, "all") != 0) {
        visible = parse_visible(c->visible, total);
    } else {
        for (; visible < total; visible++)
            physical_of[visible] = visible;
    }
    if (c->mig && visible > 1)
        visible = 1; /* a process sees at most one MIG instance */
    devices = visible;
    return devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuInit(unsigned int flags)
{
    ENTER(NEEDS_NOTHING);
    LEAVE(init(flags));
}

CUresult cuDriverGetVersion(int *version)
{
    ENTER(NEEDS_NOTHING);
    if (version != NULL)
        *version = CUDA_VERSION_11_8;
    LEAVE(version != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceGetCount(int *count)
{
    ENTER(NEEDS_DRIVER);
    if (count != NULL)
        *count = devices;
    LEAVE(count != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(NEEDS_DRIVER);
    bool ok = device_valid(ordinal) && device != NULL;
    if (ok)
        *device = ordinal;
    LEAVE(ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
    ENTER(NEEDS_DRIVER);
    bool ok = device_valid(device) && len > 0;
    if (ok)
        snprintf(name, (size_t)len, "Simulated GPU %d", physical_of[device]);
    LEAVE(ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

/* The UUID is the same in all processes of the machine. */
static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    char text[sizeof uuid->bytes + 1];
    const char *what = config()->mig ? "mig" : "gpu";
    snprintf(text, sizeof text, "sim%s%08lx%02d", what, (unsigned long)gethostid() & 0xffffffff, physical_of[device]);
    memcpy(uuid->bytes, text, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    ENTER(NEEDS_DRIVER);
    LEAVE(get_uuid(uuid, device));
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    ENTER(NEEDS_DRIVER);
    LEAVE(get_uuid(uuid, device));
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER(NEEDS_DRIVER);
    if (device_valid(device))
        *bytes = config()->total_memory;
    LEAVE(device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

/* Returns the value of an attribute; those that are not listed are 0. */
static int attribute_value(CUdevice_attribute attribute, int device)
{
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        return 1024;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return 4;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return physical_of[device] + 1;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        return 2;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        return 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return 9;
    case IPC_EVENT_SUPPORTED:
        return !config()->no_ipc;
    default:
        return 0;
    }
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER(NEEDS_DRIVER);
    if (device_valid(device))
        *value = attribute_value(attribute, device);
    LEAVE(device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    ENTER(NEEDS_DRIVER);
    bool ok = device_valid(device) && device_valid(peer);
    if (ok)
        *can = device_can_access(device, peer);
    LEAVE(ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

#define NAMED(error) \
    case error:      \
        return #error

static const char *error_name(CUresult error)
{
    switch (error) {
        NAMED(CUDA_SUCCESS);
        NAMED(CUDA_ERROR_INVALID_VALUE);
        NAMED(CUDA_ERROR_OUT_OF_MEMORY);
        NAMED(CUDA_ERROR_NOT_INITIALIZED);
        NAMED(CUDA_ERROR_DEINITIALIZED);
        NAMED(CUDA_ERROR_DEVICE_UNAVAILABLE);
        NAMED(CUDA_ERROR_NO_DEVICE);
        NAMED(CUDA_ERROR_INVALID_DEVICE);
        NAMED(CUDA_ERROR_INVALID_IMAGE);
        NAMED(CUDA_ERROR_INVALID_CONTEXT);
        NAMED(CUDA_ERROR_MAP_FAILED);
        NAMED(CUDA_ERROR_NO_BINARY_FOR_GPU);
        NAMED(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        NAMED(CUDA_ERROR_INVALID_PTX);
        NAMED(CUDA_ERROR_OPERATING_SYSTEM);
        NAMED(CUDA_ERROR_INVALID_HANDLE);
        NAMED(CUDA_ERROR_NOT_FOUND);
        NAMED(CUDA_ERROR_NOT_READY);
        NAMED(CUDA_ERROR_ILLEGAL_ADDRESS);
        NAMED(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        NAMED(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        NAMED(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        NAMED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        NAMED(CUDA_ERROR_LAUNCH_FAILED);
        NAMED(CUDA_ERROR_NOT_PERMITTED);
        NAMED(CUDA_ERROR_NOT_SUPPORTED);
        NAMED(CUDA_ERROR_UNKNOWN);
    }
    return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
    *text = error_name(error);
    return *text != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The text of an error is its name. */
CUresult cuGetErrorString(CUresult error, const char **text) { return cuGetErrorName(error, text); }
