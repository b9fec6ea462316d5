/* Events of a Kineto (Chrome) trace → columns, in one pass over the text, without a Python object.

   The text is an array of objects, of which this reads the declared members: those of an event, and those of its
   `args`. A row is an event; what it lacks is not present. Rows of one class of categories lie together, so that
   each class has those columns only that some of its rows have a value in. The first HEADS members repeat: a row has the number of its head, which is
   what it says in all of these, in the order of first rows. Texts are interned by their bytes as they stand in the
   file (escapes too); texts that need care are marked, and `scan.py` decodes those. Times are microseconds as
   decimals in the text, and integer nanoseconds here: no digit goes through a double. One event that is no JSON
   costs that event. Columns are laid out as Arrow's: values, and a bit per row that says whether one is there.

   `scan.py` keeps the same contract in Python, for machines without a compiler. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { INTEGER, UNSIGNED, REAL, TEXT, JSON, TIME, OBJECT, INT32 }; /* kinds of columns, as in scan.py */
enum { UNKNOWN = -1 };
enum { DEEPEST = 64, LARGEST_EVENT = 16 << 20, LARGEST_RETRIED = 1 << 20, MOST_TRIES = 1000 };
enum { KEY_SLOTS = 512, MOST_COLUMNS = 96, MOST_CLASSES = 8 };
enum { PHASE, CATEGORY, HEADS = 5 }; /* the first columns; all are texts */
enum { UNUSED = 3, USED = 4 };

typedef struct { /* as scan.py declares it */
    const char *name;
    int32_t length, kind, target, in_arguments; /* `target`: the column whose values it gives */
} column;

typedef struct { /* as scan.py declares it; offsets are from the begin of the text */
    int64_t rows, end, sound_end, is_closed, is_cut, broken, first_broken, irregular;
    int64_t text_count, head_count;
    int64_t class_rows[MOST_CLASSES];
    int32_t *row[MOST_CLASSES], *head[MOST_CLASSES]; /* of each row of a class: its place in the file, its head */
    void *values[MOST_CLASSES][MOST_COLUMNS];
    uint8_t *present[MOST_CLASSES][MOST_COLUMNS];
    int32_t *heads; /* HEADS texts of each, -1 for none */
    int64_t *text_begin;
    int32_t *text_length;
    uint8_t *text_care; /* 0: as it stands; 1: a string with escapes, or other than printable ASCII; 2: JSON to be checked; UNUSED: no row has it */
} scanned;

typedef struct {
    uint64_t hash;
    int32_t id;
} slot;

typedef struct {
    scanned out;
    const uint8_t *text, *sound_end;
    const column *columns;
    const char *const *categories;
    const int32_t *classes; /* of events of each category; -1: they are skipped */
    int32_t column_count, category_count;
    int32_t last_category, last_class, last_head; /* of the row before */
    int32_t next_key[MOST_COLUMNS + 2]; /* by the key before: the one that came behind it last */
    int32_t last_text[MOST_COLUMNS];    /* by column: its last text */
    uint64_t is_there[2]; /* of the event being read: a bit for each column */
    int64_t event[MOST_COLUMNS];
    int64_t capacity[MOST_CLASSES], text_capacity, slot_count, head_capacity;
    slot *slots;
    int32_t *head_slots; /* twice as many as there may be heads; -1 is free */
    uint8_t *text_is_json; /* and not the inside of a string */
    size_t expected_rows;
    int32_t is_out_of_memory;
    struct { uint64_t hash; int32_t column; } keys[KEY_SLOTS];
} scan;

/* Not those of ctype.h, which look up the user's language. */
static inline int is_digit(int byte) { return (unsigned)byte - '0' < 10; }
static inline int lower(int byte) { return (unsigned)byte - 'A' < 26 ? byte + 32 : byte; }
static inline int is_letter(int byte) { return (unsigned)lower(byte) - 'a' < 26; }
static inline int is_hex(int byte) { return is_digit(byte) || (unsigned)lower(byte) - 'a' < 6; }

static inline uint64_t load(const uint8_t *p, size_t length) {
    uint64_t word = 0;
    if (length >= 8) memcpy(&word, p, 8);
    else if (length >= 4) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + length - 4, 4);
        word = (uint64_t)high << 32 | low;
    } else if (length) word = p[0] | (uint64_t)p[length >> 1] << 8 | (uint64_t)p[length - 1] << 16;
    return word;
}

static inline uint64_t hash_of(const uint8_t *p, size_t length, uint64_t seed) {
    uint64_t hash = seed ^ length * 0x9E3779B97F4A7C15ull;
    for (; length > 8; p += 8, length -= 8) {
        hash = (hash ^ load(p, 8)) * 0xff51afd7ed558ccdull;
        hash ^= hash >> 32;
    }
    hash = (hash ^ load(p, length)) * 0xff51afd7ed558ccdull;
    return hash ^ hash >> 29;
}

static inline const uint8_t *space_end(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
    return p;
}

static int is_word(const uint8_t *p, size_t length, const char *word) {
    if (length != strlen(word)) return 0;
    for (size_t i = 0; i < length; i++)
        if (lower(p[i]) != word[i]) return 0;
    return 1;
}

/* Behind a number or word; NULL if what stands there is neither. Not numbers are let pass: recorders write them. */
static const uint8_t *token_end(const uint8_t *p, const uint8_t *end) {
    const uint8_t *begin = p;
    if (p < end && *p == '-') p++;
    if (p < end && is_digit(*p)) {
        if (*p == '0') p++;
        else while (p < end && is_digit(*p)) p++;
        if (p < end && *p == '.') {
            if (++p >= end || !is_digit(*p)) return NULL;
            while (p < end && is_digit(*p)) p++;
        }
        if (p < end && (*p == 'e' || *p == 'E')) {
            if (++p < end && (*p == '+' || *p == '-')) p++;
            if (p >= end || !is_digit(*p)) return NULL;
            while (p < end && is_digit(*p)) p++;
        }
        return p;
    }
    const uint8_t *word = p;
    while (p < end && is_letter(*p)) p++;
    size_t length = (size_t)(p - word);
    if (is_word(word, length, "nan") || is_word(word, length, "inf") || is_word(word, length, "infinity")) return p;
    if (word != begin) return NULL;
    if ((length == 4 && (!memcmp(word, "true", 4) || !memcmp(word, "null", 4))) || (length == 5 && !memcmp(word, "false", 5)))
        return p;
    return NULL;
}

/* The UTF-16 unit that an escape at `p` stands for; -1 if none stands there. */
static int code_unit(const uint8_t *p, const uint8_t *end) {
    int unit = 0;
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        if (!is_hex(p[i])) return -1;
        unit = unit << 4 | (is_digit(p[i]) ? p[i] - '0' : lower(p[i]) - 'a' + 10);
    }
    return unit;
}

/* Where the next event may begin: a brace and a key that events have. NULL if nowhere. */
static const uint8_t *next_begin(const uint8_t *p, const uint8_t *end) {
    static const char *const keys[] = {"ph", "name", "cat", "pid", "tid", "ts", "id", "dur", "args", "s", "bp"};
    while (p < end && (p = memchr(p, '{', (size_t)(end - p))) != NULL) {
        const uint8_t *name = space_end(p + 1, end);
        if (name < end && *name == '"') {
            name++;
            const uint8_t *close = memchr(name, '"', (size_t)(end - name < 6 ? end - name : 6));
            size_t length = close ? (size_t)(close - name) : 0;
            const uint8_t *colon = close ? space_end(close + 1, end) : end;
            if (colon < end && *colon == ':')
                for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
                    if (length == strlen(keys[i]) && !memcmp(name, keys[i], length)) return p;
        }
        p++;
    }
    return NULL;
}

static int find_key(const scan *s, const uint8_t *name, size_t length, int in_arguments) {
    uint64_t hash = hash_of(name, length, (uint64_t)in_arguments);
    for (uint64_t place = hash >> 32;; place++) {
        int found = s->keys[place % KEY_SLOTS].column;
        if (found == UNKNOWN) return UNKNOWN;
        const column *c = &s->columns[found];
        if (s->keys[place % KEY_SLOTS].hash == hash && (size_t)c->length == length && !memcmp(c->name, name, length))
            return found;
    }
}

static size_t width_of(int32_t kind) { return kind == TEXT || kind == JSON ? 4 : 8; }

static int grown(scan *s, void *buffer, size_t old_size, size_t new_size) {
    void **place = buffer;
    void *larger = calloc(1, new_size); /* not `realloc`: pages that no row writes to are never touched */
    if (!larger) {
        s->is_out_of_memory = 1;
        return 0;
    }
    if (old_size) memcpy(larger, *place, old_size);
    free(*place);
    *place = larger;
    return 1;
}

static int is_present(const scan *s, int32_t i) { return s->is_there[i >> 6] >> (i & 63) & 1; }

static inline void clear_event(scan *s) { s->is_there[0] = s->is_there[1] = 0; }

/* The class of an event of a category; 0 if it has none that is named. */
static int32_t class_of(scan *s, int32_t id) {
    if (id == s->last_category) return s->last_class;
    s->last_category = id;
    s->last_class = 0;
    if (id < 0) return 0;
    const uint8_t *text = s->text + s->out.text_begin[id];
    size_t length = (size_t)s->out.text_length[id];
    for (int32_t i = 0; i < s->category_count; i++)
        if (strlen(s->categories[i]) == length && !memcmp(text, s->categories[i], length)) return s->last_class = s->classes[i];
    return 0;
}

static inline uint64_t hash_of_head(const int32_t *texts) {
    uint64_t hash = 0;
    for (int i = 0; i < HEADS; i++) hash = (hash ^ (uint32_t)texts[i]) * 0xff51afd7ed558ccdull, hash ^= hash >> 32;
    return hash;
}

/* The number of a head; -1 without memory. */
static int32_t head_of(scan *s, const int32_t *texts) {
    const size_t size = HEADS * sizeof *texts;
    if (s->last_head >= 0 && !memcmp(s->out.heads + s->last_head * HEADS, texts, size)) return s->last_head;
    if (s->out.head_count == s->head_capacity) {
        size_t old = (size_t)s->head_capacity, larger = old ? old * 4 : 1024;
        int32_t *slots = malloc(2 * larger * sizeof *slots);
        if (!slots || !grown(s, &s->out.heads, old * size, larger * size)) {
            free(slots);
            return s->is_out_of_memory = 1, -1;
        }
        memset(slots, -1, 2 * larger * sizeof *slots);
        for (int32_t i = 0; i < s->out.head_count; i++) {
            uint64_t place = hash_of_head(s->out.heads + (size_t)i * HEADS);
            while (slots[place & (2 * larger - 1)] >= 0) place++;
            slots[place & (2 * larger - 1)] = i;
        }
        free(s->head_slots);
        s->head_slots = slots;
        s->head_capacity = (int64_t)larger;
    }
    const uint64_t mask = (uint64_t)s->head_capacity * 2 - 1;
    uint64_t place = hash_of_head(texts) & mask;
    for (; s->head_slots[place] >= 0; place = (place + 1) & mask)
        if (!memcmp(s->out.heads + (size_t)s->head_slots[place] * HEADS, texts, size)) return s->last_head = s->head_slots[place];
    s->last_head = s->head_slots[place] = (int32_t)s->out.head_count++;
    memcpy(s->out.heads + (size_t)s->last_head * HEADS, texts, size);
    for (int i = 0; i < HEADS; i++)
        if (texts[i] >= 0) s->out.text_care[texts[i]] |= USED;
    return s->last_head;
}

static int make_room(scan *s, int32_t class) {
    size_t old = (size_t)s->capacity[class], larger = old ? old * 2 : s->expected_rows;
    if (!grown(s, &s->out.row[class], old * 4, larger * 4) || !grown(s, &s->out.head[class], old * 4, larger * 4)) return 0;
    for (int32_t i = HEADS; i < s->column_count; i++) {
        size_t width = width_of(s->columns[i].kind);
        if (s->out.values[class][i] && !grown(s, &s->out.values[class][i], old * width, larger * width)) return 0;
        if (s->out.present[class][i] && !grown(s, &s->out.present[class][i], old / 8, larger / 8)) return 0;
    }
    s->capacity[class] = (int64_t)larger;
    return 1;
}

/* The event that was read is a row, but for one of a category that is skipped. Without memory it is none. */
static void keep_row(scan *s) {
    int32_t texts[HEADS];
    for (int32_t i = 0; i < HEADS; i++) texts[i] = is_present(s, i) ? (int32_t)s->event[i] : -1;
    int32_t class = class_of(s, texts[CATEGORY]);
    if (class < 0) return;
    int64_t row = s->out.class_rows[class];
    if (row == s->capacity[class] && !make_room(s, class)) return;
    if ((s->out.head[class][row] = head_of(s, texts)) < 0) return;
    s->out.row[class][row] = (int32_t)s->out.rows;
    for (int word = 0; word < 2; word++) {
        uint64_t left = s->is_there[word] & ~(word ? 0ull : (1ull << HEADS) - 1);
        for (; left; left &= left - 1) {
            int32_t i = word * 64 + __builtin_ctzll(left);
            size_t width = width_of(s->columns[i].kind), rows = (size_t)s->capacity[class];
            if (!s->out.values[class][i] && !grown(s, &s->out.values[class][i], 0, rows * width)) return;
            if (!s->out.present[class][i] && !grown(s, &s->out.present[class][i], 0, rows / 8)) return;
            s->out.present[class][i][row >> 3] |= (uint8_t)(1u << (row & 7));
            if (width == 4) s->out.text_care[((int32_t *)s->out.values[class][i])[row] = (int32_t)s->event[i]] |= USED;
            else ((int64_t *)s->out.values[class][i])[row] = s->event[i];
        }
    }
    s->out.class_rows[class]++;
    s->out.rows++;
}

/* The id of a text; -1 without memory. */
static int32_t intern(scan *s, const uint8_t *p, size_t length, int is_json) {
    if (s->out.text_count * 2 >= s->slot_count) {
        int64_t count = s->slot_count ? s->slot_count * 4 : 4096;
        slot *larger = malloc((size_t)count * sizeof *larger);
        if (!larger) return s->is_out_of_memory = 1, -1;
        for (int64_t i = 0; i < count; i++) larger[i].id = -1;
        for (int64_t i = 0; i < s->slot_count; i++) {
            if (s->slots[i].id < 0) continue;
            uint64_t place = s->slots[i].hash;
            while (larger[place & (uint64_t)(count - 1)].id >= 0) place++;
            larger[place & (uint64_t)(count - 1)] = s->slots[i];
        }
        free(s->slots);
        s->slots = larger;
        s->slot_count = count;
    }
    uint64_t hash = hash_of(p, length, (uint64_t)is_json << 8), place = hash;
    for (;; place++) {
        slot *at = &s->slots[place & (uint64_t)(s->slot_count - 1)];
        if (at->id < 0) break;
        if (at->hash == hash && s->out.text_length[at->id] == (int32_t)length && s->text_is_json[at->id] == is_json && !memcmp(s->text + s->out.text_begin[at->id], p, length))
            return at->id;
    }
    if (s->out.text_count == s->text_capacity) {
        size_t old = (size_t)s->text_capacity, larger = old ? old * 2 : 1024;
        if (!grown(s, &s->out.text_begin, old * 8, larger * 8) || !grown(s, &s->out.text_length, old * 4, larger * 4) ||
            !grown(s, &s->out.text_care, old, larger) || !grown(s, &s->text_is_json, old, larger))
            return -1;
        s->text_capacity = (int64_t)larger;
    }
    int32_t id = (int32_t)s->out.text_count++;
    uint8_t care = is_json && (*p == '[' || *p == '{' || *p == '"') ? 2 : 0;
    for (size_t i = 0; i < length && !care; i++) care = p[i] < 0x20 || p[i] >= 0x80 || p[i] == '\\';
    s->out.text_begin[id] = p - s->text;
    s->out.text_length[id] = (int32_t)length;
    s->out.text_care[id] = care;
    s->text_is_json[id] = (uint8_t)is_json;
    s->slots[place & (uint64_t)(s->slot_count - 1)] = (slot){hash, id};
    return id;
}

/* A decimal in units of 10^-digits, rounded half away from zero; 0 if it is no decimal or does not fit. */
static int fixed_point(const uint8_t *p, const uint8_t *end, int digits, int64_t *value) {
    int is_negative = p < end && *p == '-', power = digits, is_behind_point = 0, kept = 0;
    unsigned __int128 mantissa = 0;
    for (p += is_negative; p < end && (is_digit(*p) || (*p == '.' && !is_behind_point)); p++) {
        if (*p == '.') {
            is_behind_point = 1;
            continue;
        }
        if (kept < 36) {
            mantissa = mantissa * 10 + (unsigned)(*p - '0');
            kept += mantissa != 0;
            power -= is_behind_point;
        } else power += !is_behind_point; /* what no rounding can reach */
    }
    if (p < end) {
        long exponent = 0;
        int is_below = 0;
        if (*p != 'e' && *p != 'E') return 0;
        if (++p < end && (*p == '+' || *p == '-')) is_below = *p++ == '-';
        for (; p < end; p++) exponent = exponent < 100000 ? exponent * 10 + (*p - '0') : exponent;
        power += (int)(is_below ? -exponent : exponent);
    }
    if (!mantissa) power = 0;
    for (; power > 0 && mantissa <= INT64_MAX; power--) mantissa *= 10;
    for (; power < -1 && mantissa; power++) mantissa /= 10;
    if (power == -1) mantissa = (mantissa + 5) / 10;
    if (power > 0 || mantissa > INT64_MAX) return 0;
    *value = is_negative ? -(int64_t)mantissa : (int64_t)mantissa;
    return 1;
}

/* A handle in quotes, 0x7f…; 0 otherwise. */
static int hexadecimal(const uint8_t *p, const uint8_t *end, int64_t *value) {
    uint64_t bits = 0;
    if (end - p < 3 || end - p > 18 || p[0] != '0' || lower(p[1]) != 'x') return 0;
    for (p += 2; p < end; p++) {
        if (!is_hex(*p)) return 0;
        bits = bits << 4 | (uint64_t)(is_digit(*p) ? *p - '0' : lower(*p) - 'a' + 10);
    }
    *value = (int64_t)bits;
    return 1;
}

/* A whole number that fits its column; 0 otherwise. */
static int whole_number(const uint8_t *p, const uint8_t *end, int kind, int64_t *value) {
    int is_negative = p < end && *p == '-';
    uint64_t magnitude = 0;
    p += is_negative;
    if (p >= end) return 0;
    for (; p < end && is_digit(*p); p++)
        if (__builtin_mul_overflow(magnitude, 10u, &magnitude) ||
            __builtin_add_overflow(magnitude, (uint64_t)(*p - '0'), &magnitude))
            return 0;
    if (p < end && *p == '.') /* 3.0 */
        while (++p < end && *p == '0') {}
    if (p < end) return 0;
    if (kind == INT32 && magnitude > (uint64_t)INT32_MAX + (uint64_t)is_negative) return 0;
    if (kind == UNSIGNED ? is_negative && magnitude : magnitude > (uint64_t)INT64_MAX + (uint64_t)is_negative) return 0;
    *value = (int64_t)(is_negative ? 0 - magnitude : magnitude);
    return 1;
}

static int real_number(const uint8_t *p, const uint8_t *end, int64_t *value) {
    char text[64];
    size_t length = (size_t)(end - p);
    if (!length || length >= sizeof text || !(is_digit(p[length - 1]))) return 0; /* not a number, infinity */
    memcpy(text, p, length);
    text[length] = 0;
    double number = strtod(text, NULL);
    if (number - number != 0) return 0;
    memcpy(value, &number, sizeof number);
    return 1;
}

/* Note a value of the event. */
static inline int put(scan *s, int32_t i, int64_t value) {
    s->is_there[i >> 6] |= 1ull << (i & 63);
    s->event[i] = value;
    return 1;
}

static inline int put_text(scan *s, int32_t i, const uint8_t *p, size_t length, int is_json) {
    int32_t id = s->last_text[i];
    if (id < 0 || (size_t)s->out.text_length[id] != length || s->text_is_json[id] != is_json ||
        memcmp(s->text + s->out.text_begin[id], p, length) != 0)
        id = s->last_text[i] = intern(s, p, length, is_json);
    return id >= 0 && put(s, i, id);
}

/* Behind a plain number as recorders write it, with its value in place; NULL for all else. */
static inline const uint8_t *plain_number(const uint8_t *p, const uint8_t *end, int kind, int64_t *value) {
    const uint8_t *begin = p;
    uint64_t digits = 0;
    for (; p < end && is_digit(*p); p++) digits = digits * 10 + (uint64_t)(*p - '0');
    if (p == begin || p - begin > 16 || (*begin == '0' && p - begin > 1)) return NULL;
    if (kind == TIME) {
        int decimals = 0;
        if (p < end && *p == '.')
            for (p++; p < end && decimals < 3 && is_digit(*p); p++, decimals++) digits = digits * 10 + (uint64_t)(*p - '0');
        if (p < end && !decimals && p[-1] == '.') return NULL;
        for (; decimals < 3; decimals++) digits *= 10;
    }
    if (p >= end || (*p != ',' && *p != '}' && *p != ' ' && *p != '\n' && *p != '\r' && *p != '\t')) return NULL;
    if (digits > INT64_MAX) return NULL;
    *value = (int64_t)digits;
    return p;
}

/* Keep the value of a member; 0 without memory. A value of another type than its column is none, and counted. */
static int store(scan *s, int32_t i, const uint8_t *p, size_t length) {
    const column *c = &s->columns[i];
    const uint8_t *end = p + length;
    int64_t value = 0;
    i = c->target;
    s->is_there[i >> 6] &= ~(1ull << (i & 63)); /* of a key before */
    if (length == 4 && *p == 'n' && p[1] == 'u') return 1;
    if (c->kind == TEXT || c->kind == JSON) {
        if (*p != '"' || c->kind == JSON) return put_text(s, i, p, length, 1);
        return put_text(s, i, p + 1, length - 2, 0);
    }
    if (*p == '"') {
        p++, end--;
        if ((c->kind == INTEGER || c->kind == UNSIGNED) && hexadecimal(p, end, &value)) return put(s, i, value);
    }
    const uint8_t *behind = p < end ? token_end(p, end) : NULL;
    if (behind == end && (c->kind == TIME   ? fixed_point(p, end, 3, &value)
                          : c->kind == REAL ? real_number(p, end, &value)
                                            : whole_number(p, end, c->kind, &value)))
        return put(s, i, value);
    /* A time or real number that is none, or beyond its column, is no value of another type. */
    int is_number = behind == end && p < end && !is_word(p, (size_t)(end - p), "true") && !is_word(p, (size_t)(end - p), "false");
    s->out.irregular += !(is_number && (c->kind == TIME || c->kind == REAL));
    return 1;
}

#define JOINED_(a, b) a##_##b
#define JOINED(a, b) JOINED_(a, b)

#if defined(__x86_64__)
#include <immintrin.h>
#define NAME(name) JOINED(name, sse2)
#define STRIDE 16
static inline int stop_sse2(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    __m128i hits = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
    return __builtin_ctz((unsigned)_mm_movemask_epi8(hits) | 1u << 16);
}
#define STRING_STOP stop_sse2
#include "scan_pass.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
#define NAME(name) JOINED(name, avx2)
#define STRIDE 32
static inline int stop_avx2(const uint8_t *p) {
    __m256i bytes = _mm256_loadu_si256((const __m256i *)p);
    __m256i hits = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('"')),
                                   _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\\')));
    unsigned mask = (unsigned)_mm256_movemask_epi8(hits);
    return mask ? __builtin_ctz(mask) : 32;
}
#define STRING_STOP stop_avx2
#include "scan_pass.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#elif defined(__aarch64__)
#include <arm_neon.h>
#define NAME(name) JOINED(name, neon)
#define STRIDE 16
static inline int stop_neon(const uint8_t *p) {
    uint8x16_t bytes = vld1q_u8(p);
    uint8x16_t hits = vorrq_u8(vceqq_u8(bytes, vdupq_n_u8('"')), vceqq_u8(bytes, vdupq_n_u8('\\')));
    uint64_t nibbles = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(hits), 4)), 0);
    return nibbles ? __builtin_ctzll(nibbles) >> 2 : 16;
}
#define STRING_STOP stop_neon
#include "scan_pass.h"

#else
#define NAME(name) JOINED(name, plain)
#define STRIDE 1
#define STRING_STOP(p) (*(p) != '"' && *(p) != '\\')
#include "scan_pass.h"
#endif

/* Counted up when columns, kinds or results change, so that a library of before is not used. */
int32_t scan_contract(void) { return 3; }

void scan_free(scan *s) {
    if (!s) return;
    for (int32_t class = 0; class < MOST_CLASSES; class++) {
        free(s->out.row[class]);
        free(s->out.head[class]);
        for (int32_t i = 0; i < MOST_COLUMNS; i++) {
            free(s->out.values[class][i]);
            free(s->out.present[class][i]);
        }
    }
    free(s->out.heads);
    free(s->head_slots);
    free(s->out.text_begin);
    free(s->out.text_length);
    free(s->out.text_care);
    free(s->slots);
    free(s->text_is_json);
    free(s);
}

/* Scan text[start:] up to the first event that begins at `limit` or behind it, or to the end of the array.
   Events of categories that are named are of their classes, or skipped. NULL without memory. */
scan *scan_events(const uint8_t *text, int64_t size, int64_t start, int64_t limit, const column *columns, int32_t column_count,
                  const char *const *categories, const int32_t *classes, int32_t category_count) {
    scan *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->text = text;
    s->columns = columns;
    s->column_count = column_count;
    s->categories = categories;
    s->classes = classes;
    s->category_count = category_count;
    s->last_category = s->last_head = -1;
    s->expected_rows = ((size_t)(limit - start) / 512 / 8 + 1) * 8;
    for (int32_t i = 0; i < KEY_SLOTS; i++) s->keys[i].column = UNKNOWN;
    for (int32_t i = 0; i < column_count; i++) {
        uint64_t hash = hash_of((const uint8_t *)columns[i].name, (size_t)columns[i].length, (uint64_t)columns[i].in_arguments);
        uint64_t place = hash >> 32;
        while (s->keys[place % KEY_SLOTS].column != UNKNOWN) place++;
        s->keys[place % KEY_SLOTS].hash = hash;
        s->keys[place % KEY_SLOTS].column = i;
        s->last_text[i] = -1;
    }
    const uint8_t *p = space_end(text + start, text + size);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) pass_avx2(s, p, text + limit, text + size);
    else pass_sse2(s, p, text + limit, text + size);
#elif defined(__aarch64__)
    pass_neon(s, p, text + limit, text + size);
#else
    pass_plain(s, p, text + limit, text + size);
#endif
    free(s->slots);
    free(s->head_slots);
    s->slots = NULL;
    s->head_slots = NULL;
    if (s->is_out_of_memory) {
        scan_free(s);
        return NULL;
    }
    for (int64_t i = 0; i < s->out.text_count; i++) {
        uint8_t care = s->out.text_care[i];
        s->out.text_care[i] = care & USED ? care - USED : UNUSED;
    }
    return s;
}
