/* A CUDA driver without a GPU, of two devices.

   OPSCOPE_FAKE_CUDA says what goes wrong: none, no_device, init, hang, crash. */
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

int cuGetErrorName(int code, const char **text) { (void)code; *text = "CUDA_ERROR_SYSTEM_NOT_READY"; return 0; }

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
