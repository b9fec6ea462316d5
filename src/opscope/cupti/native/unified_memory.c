#include "unified_memory.h"

#include <string.h>

CUptiResult unified_memory_enable(void)
{
    static const CUpti_ActivityUnifiedMemoryCounterKind KINDS[] = {
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD,
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH,
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOD, /* refused where there is one device */
    };
    CUpti_ActivityUnifiedMemoryCounterConfig wanted[3];
    memset(wanted, 0, sizeof wanted);
    for (int i = 0; i < 3; i++) {
        wanted[i].scope = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE;
        wanted[i].kind = KINDS[i];
        wanted[i].enable = 1;
    }
    CUptiResult result = cupti.cuptiActivityConfigureUnifiedMemoryCounter(wanted, 2);
    if (result != CUPTI_SUCCESS) return result;
    cupti.cuptiActivityConfigureUnifiedMemoryCounter(&wanted[2], 1);
    return cupti.cuptiActivityEnable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER);
}
