#define _GNU_SOURCE
#include "memory_maps.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "record_file.h"

void memory_maps_put(void)
{
    static uint32_t number;
    static char part[32768];
    char line[PATH_MAX + 128];
    size_t used = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) return;
    while (fgets(line, sizeof line, maps) != NULL) {
        size_t length = strlen(line);
        if (strstr(line, "xp ") == NULL || strchr(line, '/') == NULL) continue;
        if (used + length > sizeof part) {
            record_file_put_text(TEXT_MAPS, number++, part, used);
            used = 0;
        }
        memcpy(part + used, line, length);
        used += length;
    }
    if (used > 0) record_file_put_text(TEXT_MAPS, number++, part, used);
    fclose(maps);
}
