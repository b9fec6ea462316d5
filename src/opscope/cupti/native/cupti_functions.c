#define _GNU_SOURCE
#include "cupti_functions.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct cupti cupti;

static int find(void *library, const char *name, void *place, char *reason, size_t reason_bytes)
{
    void *function = dlsym(library, name);
    if (function == NULL) {
        snprintf(reason, reason_bytes, "it has no function %s", name);
        return 0;
    }
    memcpy(place, &function, sizeof function);
    return 1;
}

int cupti_load(const char *path, char *reason, size_t reason_bytes)
{
    const char *slash = strrchr(path, '/');
    void *library = dlopen(slash == NULL ? path : slash + 1, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *error = dlerror();
        snprintf(reason, reason_bytes, "%s", error == NULL ? "it cannot be loaded" : error);
        return 0;
    }
#define CUPTI_FIND(name)                                                                                               \
    if (!find(library, #name, &cupti.name, reason, reason_bytes)) return 0;
    CUPTI_FUNCTIONS(CUPTI_FIND)
    char unused[64];
    find(library, "cuptiActivityEnableRuntimeApi", &cupti.cuptiActivityEnableRuntimeApi, unused, sizeof unused);
    find(library, "cuptiActivityEnableDriverApi", &cupti.cuptiActivityEnableDriverApi, unused, sizeof unused);
    return 1;
}

const char *cupti_loaded_path(void)
{
    Dl_info where;
    void *address;
    memcpy(&address, &cupti.cuptiGetVersion, sizeof address);
    return dladdr(address, &where) != 0 && where.dli_fname != NULL ? where.dli_fname : "";
}

const char *cupti_result_name(CUptiResult result)
{
    const char *name = NULL;
    if (cupti.cuptiGetResultString(result, &name) != CUPTI_SUCCESS || name == NULL) return "an unknown error";
    return name;
}
