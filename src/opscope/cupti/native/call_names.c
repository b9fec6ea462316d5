#include "call_names.h"

#include <stddef.h>
#include <string.h>

/* Up to the version that CUPTI appends: `_v3020`, `_v2`, `_ptsz`. */
static const char *const QUERIES[] = {
    "__cudaPopCallConfiguration",
    "__cudaPushCallConfiguration",
    "cuCtxGetApiVersion",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetFlags",
    "cuCtxGetId",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    "cuDevicePrimaryCtxGetState",
    "cuDriverGetVersion",
    "cuFuncGetAttribute",
    "cuKernelGetAttribute",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuStreamGetCtx",
    "cudaDeviceGetAttribute",
    "cudaDriverGetVersion",
    "cudaGetDevice",
    "cudaGetErrorName",
    "cudaGetErrorString",
    "cudaGetLastError",
    "cudaPeekAtLastError",
    "cudaPointerGetAttributes",
    "cudaRuntimeGetVersion",
    "cudaSetDevice",
};

/* Families, by how they begin. */
static const char *const QUERY_FAMILIES[] = {
    "cuDeviceGet", "cuDeviceTotalMem", "cuGetError", "cuGetExportTable", "cuGetProcAddress", "cuOccupancy",
    "cudaGetDriverEntryPoint", "cudaOccupancy",
};

/* Length of a name without its version: `_v` and digits, and then `_ptsz` or `_ptds` (per-thread streams). */
static size_t bare_length(const char *name)
{
    size_t length = strlen(name);
    if (length > 5 && (strcmp(name + length - 5, "_ptsz") == 0 || strcmp(name + length - 5, "_ptds") == 0)) length -= 5;
    size_t end = length;
    while (end > 0 && name[end - 1] >= '0' && name[end - 1] <= '9') end--;
    if (end < length && end > 2 && name[end - 1] == 'v' && name[end - 2] == '_') return end - 2;
    return length;
}

int is_query(const char *name)
{
    size_t length = bare_length(name);
    for (size_t i = 0; i < sizeof QUERIES / sizeof *QUERIES; i++) {
        if (strlen(QUERIES[i]) == length && strncmp(name, QUERIES[i], length) == 0) return 1;
    }
    for (size_t i = 0; i < sizeof QUERY_FAMILIES / sizeof *QUERY_FAMILIES; i++) {
        if (strncmp(name, QUERY_FAMILIES[i], strlen(QUERY_FAMILIES[i])) == 0) return 1;
    }
    return 0;
}
