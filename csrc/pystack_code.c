/* pystack_code.c - what a code object is and says, read without the GIL. */
#include "pystack_code.h"

#include "mem.h"

#include <Python.h>

#ifndef MP_PYSTACK_UNSUPPORTED

/* -- deaths ----------------------------------------------------------------
 */

#if PY_VERSION_HEX >= 0x030C0000

void
mp_pycode_watch(void)
{
}

#else

atomic_uint mp_pycode_deaths[1 << 12];
static destructor dealloc_code; /* Python's own; set once, with the GIL */

static void
count_death(PyObject *code)
{
    atomic_fetch_add_explicit(deaths_at(code), 1, memory_order_relaxed);
    dealloc_code(code);
}

/* For good: an extension is never unloaded. */
void
mp_pycode_watch(void)
{
    if (dealloc_code == NULL) {
        dealloc_code = PyCode_Type.tp_dealloc;
        PyCode_Type.tp_dealloc = count_death;
    }
}

#endif

/* -- text: from Python's strings to UTF-8 --------------------------------- */

static size_t
utf8_put(char *out, uint32_t character)
{
    if (character < 0x80) {
        out[0] = (char)character;
        return 1;
    }
    if (character < 0x800) {
        out[0] = (char)(0xC0 | character >> 6);
        out[1] = (char)(0x80 | (character & 0x3F));
        return 2;
    }
    if (character >= 0xD800 && character < 0xE000) {
        character = 0xFFFD; /* half of a pair, as in undecodable file names */
    }
    if (character < 0x10000) {
        out[0] = (char)(0xE0 | character >> 12);
        out[1] = (char)(0x80 | (character >> 6 & 0x3F));
        out[2] = (char)(0x80 | (character & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | character >> 18);
    out[1] = (char)(0x80 | (character >> 12 & 0x3F));
    out[2] = (char)(0x80 | (character >> 6 & 0x3F));
    out[3] = (char)(0x80 | (character & 0x3F));
    return 4;
}

/* The id of a Python text.  Not PyUnicode_AsUTF8(), which needs the GIL: it
 * stores what it made in the string. */
uint32_t
mp_pycode_text(mp_intern_t *intern, PyObject *text)
{
    if (!mp_pytext_is_ready(text)) {
        return mp_intern_string(intern, "?", 1);
    }
    size_t length = (size_t)PyUnicode_GET_LENGTH(text);
    int kind = (int)PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    if (PyUnicode_IS_ASCII(text)) {
        return mp_intern_string(intern, data, length);
    }
    char small[512] = "";
    char *utf8 = small;
    if (length > sizeof(small) / 4) {
        utf8 = mp_calloc(length, 4);
        if (utf8 == NULL) {
            return MP_NO_INDEX;
        }
    }
    size_t size = 0;
    for (size_t i = 0; i < length; i++) {
        size +=
            utf8_put(utf8 + size, PyUnicode_READ(kind, data, (Py_ssize_t)i));
    }
    uint32_t id = mp_intern_string(intern, utf8, size);
    if (utf8 != small) {
        mp_free(utf8);
    }
    return id;
}

/* -- lines: from an instruction to a line number -------------------------- */

/* Not PyCode_Addr2Line(), which may use an array that another thread is
 * about to build.  0: the instruction belongs to no line. */

#if PY_VERSION_HEX >= 0x030B0000

/* The location table: entries of a first byte with its high bit set (kind in
 * bits 3-6, length less one in bits 0-2) and more bytes without it. */
enum {
    LINE_PLUS_0 = 10, /* to 12: the next 0, 1 or 2 lines */
    LINE_PLUS_2 = 12,
    LINE_NO_COLUMNS = 13,
    LINE_LONG = 14,
    LINE_NONE = 15,
};

/* A signed number: 6 bits a byte, lowest first, bit 6 says that more follow;
 * bit 0 of the whole is the sign. */
static int64_t
read_delta(const uint8_t *at, const uint8_t *end)
{
    uint64_t value = 0;
    for (unsigned shift = 0; at < end && shift < 36; shift += 6) {
        value |= (uint64_t)(*at & 0x3F) << shift;
        if ((*at++ & 0x40) == 0) {
            break;
        }
    }
    int64_t magnitude = (int64_t)(value >> 1);
    return (value & 1) != 0 ? -magnitude : magnitude;
}

uint32_t
mp_pycode_line(const PyCodeObject *code, int32_t index)
{
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(code->co_linetable);
    const uint8_t *end = at + PyBytes_GET_SIZE(code->co_linetable);
    int64_t line = code->co_firstlineno;
    int64_t next = 0; /* first instruction after the entry */
    while (at < end && index >= 0) {
        int kind = *at >> 3 & 15;
        next += (*at++ & 7) + 1;
        if (kind == LINE_NO_COLUMNS || kind == LINE_LONG) {
            line += read_delta(at, end);
        }
        else if (kind >= LINE_PLUS_0 && kind <= LINE_PLUS_2) {
            line += kind - LINE_PLUS_0;
        }
        if (index < next) {
            return kind != LINE_NONE && line > 0 ? (uint32_t)line : 0;
        }
        while (at < end && (*at & 0x80) == 0) {
            at++;
        }
    }
    return index < 0 && line > 0 ? (uint32_t)line : 0;
}

#else /* 3.10, PEP 626 */

/* Pairs of bytes: how far the entry reaches (in bytes of bytecode), and the
 * signed step to its line; -128: it has none. */
uint32_t
mp_pycode_line(const PyCodeObject *code, int32_t index)
{
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(code->co_linetable);
    const uint8_t *end = at + PyBytes_GET_SIZE(code->co_linetable);
    int64_t line = code->co_firstlineno;
    int64_t next = 0;
    int64_t offset = (int64_t)index * 2;
    for (; end - at >= 2 && index >= 0; at += 2) {
        int step = (int8_t)at[1];
        next += at[0];
        line += step != -128 ? step : 0;
        if (offset < next) {
            return step != -128 && line > 0 ? (uint32_t)line : 0;
        }
    }
    return index < 0 && line > 0 ? (uint32_t)line : 0;
}

#endif

#endif
