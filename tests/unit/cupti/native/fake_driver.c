/* A CUDA driver of one device, as far as the recorder asks it: to be built with the soname libcuda.so.1. */
#include <stddef.h>
#include <string.h>

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

int cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int bytes, int device)
{
    (void)device;
    strncpy(name, "NVIDIA H200", (size_t)bytes);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = 150109880320;
    return 0;
}

/* By the numbers in cuda.h. */
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    switch (attribute) {
    case 75: *value = 9; return 0;
    case 76: *value = 0; return 0;
    case 16: *value = 132; return 0;
    case 10: *value = 32; return 0;
    case 1: *value = 1024; return 0;
    case 39: *value = 2048; return 0;
    case 12: *value = 65536; return 0;
    case 82: *value = 65536; return 0;
    case 8: *value = 49152; return 0;
    case 97: *value = 232448; return 0;
    case 81: *value = 233472; return 0;
    default: return 1;
    }
}
