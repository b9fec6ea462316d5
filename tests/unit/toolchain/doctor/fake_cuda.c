/* A CUDA driver without a GPU: two devices in host memory, whose kernel doubles numbers.

   OPSCOPE_FAKE_CUDA says what goes wrong: none, no_device, init, launch, wrong, hang, crash. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int mode(const char *name) {
    const char *value = getenv("OPSCOPE_FAKE_CUDA");
    return value != NULL && strcmp(value, name) == 0;
}

int cuDriverGetVersion(int *version) { *version = 13010; return 0; }

int cuInit(unsigned flags) {
    if (mode("hang")) sleep(60);
    if (mode("crash")) abort();
    return mode("init") ? 802 : flags != 0;
}

int cuGetErrorName(int code, const char **text) {
    *text = code == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : "CUDA_ERROR_ILLEGAL_ADDRESS";
    return 0;
}

int cuGetErrorString(int code, const char **text) { (void)code; *text = "in words"; return 0; }
int cuDeviceGetCount(int *count) { *count = mode("no_device") ? 0 : 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index > 1; }

int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, device ? "Fake B" : "Fake A", (size_t)length);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)(device + 1) << 33; return 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? device : -1;
    return *value < 0;
}

int cuDeviceGetUuid(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)(16 * device + i);
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &mode; return device; }
int cuCtxSetCurrent(void *context) { return context != &mode; }
int cuModuleLoadData(void **module, const char *image) { *module = &mode; return strstr(image, ".entry opscope_doctor(") == NULL; }
int cuModuleGetFunction(void **kernel, void *module, const char *name) { *kernel = module; return strcmp(name, "opscope_doctor"); }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) { *address = (uint64_t)(uintptr_t)malloc(bytes); return bytes != 128; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { memcpy((void *)(uintptr_t)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)(uintptr_t)from, bytes); return 0; }
int cuCtxSynchronize(void) { return mode("launch") ? 700 : 0; }

int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    uint32_t *numbers = (uint32_t *)(uintptr_t)*(uint64_t *)arguments[0];
    if (kernel != &mode || gx * gy * gz * by * bz != 1 || shared || stream || extra) return 1;
    for (unsigned i = 0; i < bx; i++) numbers[i] *= mode("wrong") ? 3 : 2;
    return 0;
}
