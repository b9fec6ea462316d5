/* Scans each file that it is called with, whole, with the members of events that the test writes. */
#include "scan.c"
#include <stdio.h>

static const column members[] = {
#include "members.h"
};
static const char *const skipped[] = {"ac2g", "async"};

int main(int count, char **files) {
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(files[i], "rb");
        fseek(file, 0, SEEK_END);
        long size = ftell(file);
        rewind(file);
        uint8_t *text = malloc((size_t)size + 1); /* a byte more would hide reading one too far */
        text = realloc(text, (size_t)size ? (size_t)size : 1);
        if (fread(text, 1, (size_t)size, file) != (size_t)size) return 2;
        fclose(file);
        int count_of_members = sizeof members / sizeof *members;
        scan_free(scan_events(text, size, 0, size, members, count_of_members, 0, 1, skipped, 2));
        free(text);
    }
    return 0;
}
