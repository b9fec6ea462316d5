/* Scans each file that it is called with, whole, with the members and categories of events that the test writes. */
#include "scan.c"
#include <stdio.h>

static const column members[] = {
#include "members.h"
};
#include "categories.h"

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
        int member_count = sizeof members / sizeof *members, category_count = sizeof categories / sizeof *categories;
        scan_free(scan_events(text, size, 0, size, members, member_count, categories, classes, category_count));
        free(text);
    }
    return 0;
}
