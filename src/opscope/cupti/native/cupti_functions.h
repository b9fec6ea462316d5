/* CUPTI's functions, found while the program runs: a program that has CUPTI loaded already (PyTorch) keeps its one
 * copy, and one without it is told so in its file instead of failing to load this library. */
#ifndef OPSCOPE_CUPTI_FUNCTIONS_H
#define OPSCOPE_CUPTI_FUNCTIONS_H

#include <stddef.h>

#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_result.h>
#include <cupti_version.h>

#if CUPTI_API_VERSION < 18
#error "CUPTI of CUDA 11.8 or newer is needed"
#endif

#define CUPTI_FUNCTIONS(FUNCTION)                                                                                      \
    FUNCTION(cuptiActivityConfigureUnifiedMemoryCounter)                                                               \
    FUNCTION(cuptiActivityEnable)                                                                                      \
    FUNCTION(cuptiActivityFlushAll)                                                                                    \
    FUNCTION(cuptiActivityGetNextRecord)                                                                               \
    FUNCTION(cuptiActivityGetNumDroppedRecords)                                                                        \
    FUNCTION(cuptiActivityRegisterCallbacks)                                                                           \
    FUNCTION(cuptiActivitySetAttribute)                                                                                \
    FUNCTION(cuptiEnableCallback)                                                                                      \
    FUNCTION(cuptiGetCallbackName)                                                                                     \
    FUNCTION(cuptiGetResultString)                                                                                     \
    FUNCTION(cuptiGetTimestamp)                                                                                        \
    FUNCTION(cuptiGetVersion)                                                                                          \
    FUNCTION(cuptiSetThreadIdType)                                                                                     \
    FUNCTION(cuptiSubscribe)                                                                                           \
    FUNCTION(cuptiUnsubscribe)

#define CUPTI_MEMBER(name) __typeof__(&name) name;

struct cupti {
    CUPTI_FUNCTIONS(CUPTI_MEMBER)
    /* Of CUDA 12.4 and newer; NULL before. */
    CUptiResult (*cuptiActivityEnableRuntimeApi)(CUpti_CallbackId function, uint8_t enable);
    CUptiResult (*cuptiActivityEnableDriverApi)(CUpti_CallbackId function, uint8_t enable);
};

extern struct cupti cupti;

/* Find the functions in the copy that is loaded, else in a file. Returns 1; or 0 and why. */
int cupti_load(const char *path, char *reason, size_t reason_bytes);

/* The file the functions are in; an empty text if that is not known. */
const char *cupti_loaded_path(void);

/* CUPTI's name of a result, e.g. `CUPTI_ERROR_NOT_INITIALIZED`. */
const char *cupti_result_name(CUptiResult result);

#endif
