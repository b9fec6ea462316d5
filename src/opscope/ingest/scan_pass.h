/* The forward pass of scan.c, compiled once per instruction set: STRING_STOP(p) is the distance from `p` to the
   first quote or backslash of the STRIDE bytes there, or STRIDE. The includer defines both, and NAME. */

/* Behind the closing quote of the string whose text begins at `p`; NULL if none closes it. */
static const uint8_t *NAME(string_end)(const uint8_t *p, const uint8_t *end) {
    for (;;) {
        while (end - p >= STRIDE) {
            int stop = STRING_STOP(p);
            p += stop;
            if (stop < STRIDE) break;
        }
        while (p < end && *p != '"' && *p != '\\') p++;
        if (p >= end) return NULL;
        if (*p == '"') return p + 1;
        if (end - p < 2) return NULL;
        if (p[1] == 'u') { /* half a character is none */
            int unit = code_unit(p, end);
            if (unit < 0 || unit >> 10 == 0x37) return NULL;
            if (unit >> 10 == 0x36 && code_unit(p += 6, end) >> 10 != 0x37) return NULL;
            p += 6;
        } else {
            if (!memchr("\"\\/bfnrt", p[1], 8)) return NULL;
            p += 2;
        }
    }
}

static const uint8_t *NAME(value_end)(const uint8_t *p, const uint8_t *end) {
    if (p >= end) return NULL;
    if (*p == '"') return NAME(string_end)(p + 1, end);
    if (*p != '[' && *p != '{') return token_end(p, end);
    uint64_t kinds = 0; /* of the brackets that are open, the innermost lowest: 1 for an object */
    int depth = 0;
    while (p < end) {
        switch (*p) {
        case '"':
            if (!(p = NAME(string_end)(p + 1, end))) return NULL;
            continue;
        case '[':
        case '{':
            if (++depth > DEEPEST) return NULL;
            kinds = kinds << 1 | (*p == '{');
            break;
        case ']':
        case '}':
            if ((kinds & 1) != (*p == '}')) return NULL;
            kinds >>= 1;
            if (--depth == 0) return p + 1;
        }
        p++;
    }
    return NULL;
}

/* Read the members of an object, behind its brace at `p`: behind the object, or NULL. */
static const uint8_t *NAME(members)(scan *s, const uint8_t *p, const uint8_t *end, int in_arguments) {
    int key, before = MOST_COLUMNS + in_arguments;
    p = space_end(p, end);
    if (p < end && *p == '}') return p + 1;
    for (;; before = key < 0 ? before : key) {
        if (p >= end || *p != '"') return NULL;
        const uint8_t *name = p + 1;
        key = s->next_key[before]; /* events of one kind have their keys in one order */
        const column *c = &s->columns[key];
        if (c->in_arguments == in_arguments && end - name > c->length && name[c->length] == '"' &&
            !memcmp(name, c->name, (size_t)c->length)) {
            p = name + c->length + 1;
        } else {
            if (!(p = NAME(string_end)(name, end))) return NULL;
            key = find_key(s, name, (size_t)(p - 1 - name), in_arguments);
            c = &s->columns[key < 0 ? 0 : key];
            if (key >= 0) s->next_key[before] = key;
        }
        p = space_end(p, end);
        if (p >= end || *p != ':') return NULL;
        p = space_end(p + 1, end);
        const uint8_t *value = p, *behind;
        int64_t number;
        if (key >= 0 && (c->kind == INTEGER || c->kind == TIME) && (behind = plain_number(p, end, c->kind, &number))) {
            put(s, c->target, number);
            p = behind;
        } else if (key >= 0 && c->kind == OBJECT && p < end && *p == '{') {
            if (!(p = NAME(members)(s, p + 1, end, 1))) return NULL;
        } else {
            if (!(p = NAME(value_end)(p, end))) return NULL;
            if (key >= 0 && c->kind == OBJECT) s->out.irregular += *value != 'n';
            else if (key >= 0 && !store(s, key, value, (size_t)(p - value))) return NULL;
        }
        p = space_end(p, end);
        if (p >= end) return NULL;
        if (*p == '}') return p + 1;
        if (*p != ',') return NULL;
        p = space_end(p + 1, end);
    }
}

/* Read the event at `p`: behind it and the comma after it (what closes the array stays), or NULL
   with nothing kept. */
static const uint8_t *NAME(event)(scan *s, const uint8_t *p, const uint8_t *end, ptrdiff_t largest) {
    const uint8_t *most = end - p > largest ? p + largest : end;
    int64_t irregular = s->out.irregular;
    clear_event(s);
    if (p < end && *p == '{') {
        const uint8_t *behind = NAME(members)(s, p + 1, most, 0);
        if (behind) {
            s->sound_end = behind;
            behind = space_end(behind, end);
            if (behind < end && *behind == ',') return space_end(behind + 1, end);
            if (behind == end || *behind == ']') return behind;
        }
    }
    s->out.irregular = irregular;
    return NULL;
}

static void NAME(pass)(scan *s, const uint8_t *p, const uint8_t *limit, const uint8_t *end) {
    int tries = MOST_TRIES;
    s->sound_end = p;
    while (p < end && p < limit && *p != ']' && !s->is_out_of_memory) {
        const uint8_t *begin = p, *sound_end = s->sound_end;
        const uint8_t *behind = NAME(event)(s, p, end, LARGEST_EVENT);
        if (behind) {
            keep_row(s);
            p = behind;
            continue;
        }
        /* What stands here is no event: on to the next that is one, which is then read in its turn. */
        while (!behind && tries-- > 0 && (p = next_begin(p + 1, end)) != NULL) {
            int64_t irregular = s->out.irregular;
            behind = NAME(event)(s, p, end, LARGEST_RETRIED);
            if (!behind) continue;
            if (!is_present(s, PHASE)) behind = NULL;
            s->out.irregular = irregular;
        }
        s->sound_end = sound_end;
        if (s->is_out_of_memory) break;
        if (!behind) {
            p = end; /* cut off behind the last sound event */
            s->out.is_cut = 1;
            break;
        }
        if (!s->out.broken++) s->out.first_broken = begin - s->text;
    }
    s->out.end = p - s->text;
    s->out.is_closed = p < end && *p == ']';
    s->out.sound_end = s->sound_end - s->text;
}
#undef NAME
#undef STRIDE
#undef STRING_STOP
