/* Writes a file of records without CUPTI:
 *
 *     writer FOLDER KERNELS TEXTS
 *
 * Kernel i starts at 1000 + 10 i and has the name i % TEXTS; name i is "kernel_" and i times the letter x. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record_file.h"

int main(int count, char **arguments)
{
    if (count < 4 || record_file_open(arguments[1]) != 0) return 1;
    int kernels = atoi(arguments[2]), texts = atoi(arguments[3]);
    record_file_header()->start_ns = 1;
    for (int i = 0; i < kernels; i++) {
        if (i < texts) {
            char *name = malloc((size_t)i + 8);
            memcpy(name, "kernel_", 7);
            memset(name + 7, 'x', (size_t)i);
            record_file_put_text(TEXT_KERNEL, (uint32_t)i, name, (size_t)i + 7);
            free(name);
        }
        uint64_t start = 1000 + 10 * (uint64_t)i;
        struct kernel_record kernel = {.start_ns = start, .end_ns = start + 5, .name = (uint32_t)(i % texts)};
        record_file_put(CHUNK_KERNELS, &kernel, sizeof kernel);
        struct call_record call = {.start_ns = start - 3, .end_ns = start - 1, .correlation = (uint32_t)i};
        record_file_put(CHUNK_RUNTIME_CALLS, &call, sizeof call);
    }
    record_file_header()->state = FILE_ENDED;
    record_file_flush();
    return 0;
}
