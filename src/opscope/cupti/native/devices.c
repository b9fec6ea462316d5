#define _GNU_SOURCE
#include "devices.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

struct driver {
    CUresult (*version)(int *version);
    CUresult (*count)(int *count);
    CUresult (*get)(CUdevice *device, int ordinal);
    CUresult (*name)(char *name, int bytes, CUdevice device);
    CUresult (*memory)(size_t *bytes, CUdevice device);
    CUresult (*attribute)(int *value, CUdevice_attribute attribute, CUdevice device);
};

static const struct {
    CUdevice_attribute attribute;
    size_t offset;
} ATTRIBUTES[] = {
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, offsetof(struct device_record, major)},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, offsetof(struct device_record, minor)},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, offsetof(struct device_record, multiprocessors)},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, offsetof(struct device_record, warp_size)},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, offsetof(struct device_record, threads_per_block)},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, offsetof(struct device_record, threads_per_multiprocessor)},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, offsetof(struct device_record, registers_per_block)},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
     offsetof(struct device_record, registers_per_multiprocessor)},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, offsetof(struct device_record, shared_per_block)},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, offsetof(struct device_record, shared_per_block_optin)},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
     offsetof(struct device_record, shared_per_multiprocessor)},
};

static int find(void *library, const char *name, void *place)
{
    void *function = dlsym(library, name);
    memcpy(place, &function, sizeof function);
    return function != NULL;
}

static int load(struct driver *driver)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) return 0;
    return find(library, "cuDriverGetVersion", &driver->version) && find(library, "cuDeviceGetCount", &driver->count) &&
           find(library, "cuDeviceGet", &driver->get) && find(library, "cuDeviceGetName", &driver->name) &&
           find(library, "cuDeviceTotalMem_v2", &driver->memory) &&
           find(library, "cuDeviceGetAttribute", &driver->attribute);
}

static void read_device(const struct driver *driver, int ordinal, struct device_record *record)
{
    CUdevice device;
    size_t memory_bytes = 0;
    memset(record, 0, sizeof *record);
    record->device = ordinal;
    if (driver->get(&device, ordinal) != CUDA_SUCCESS) return;
    if (driver->name(record->name, sizeof record->name - 1, device) != CUDA_SUCCESS) record->name[0] = '\0';
    if (driver->memory(&memory_bytes, device) == CUDA_SUCCESS) record->memory_bytes = memory_bytes;
    for (size_t i = 0; i < sizeof ATTRIBUTES / sizeof *ATTRIBUTES; i++) {
        int value = 0;
        if (driver->attribute(&value, ATTRIBUTES[i].attribute, device) != CUDA_SUCCESS) value = 0;
        memcpy((char *)record + ATTRIBUTES[i].offset, &value, sizeof value);
    }
}

int devices_read(struct device_record *records, int most, uint32_t *driver_version)
{
    struct driver driver;
    int version = 0;
    int count = 0;
    if (!load(&driver)) return -1;
    if (driver.version(&version) == CUDA_SUCCESS) *driver_version = (uint32_t)version;
    if (driver.count(&count) != CUDA_SUCCESS) return -1;
    if (count > most) count = most;
    for (int ordinal = 0; ordinal < count; ordinal++) read_device(&driver, ordinal, &records[ordinal]);
    return count;
}
