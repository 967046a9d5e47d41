/* pystack_code.h - what a code object is and says, read without the GIL.
 *
 * Private to the walk, on any thread that runs the code: it keeps what is
 * read here alive.  Plain reads; nothing of Python's is written, but for
 * mp_pycode_watch(). */
#ifndef MP_PYSTACK_CODE_H
#define MP_PYSTACK_CODE_H

#include "intern.h"
#include "pystack_layout.h"
#include "pystack_positions.h"

#include <stdatomic.h>

#ifndef MP_PYSTACK_UNSUPPORTED

/* Names, files and line tables die with the code they belong to, and their
 * addresses are used again like its own: a loop that makes and drops
 * functions sees the same pointers each time.  So every code object has a
 * generation as well, another one than all that lay at its address before. */
#if PY_VERSION_HEX >= 0x030C0000

/* Python numbers its code objects.  (When its 32 bits have run out, new ones
 * have 0, and the pointers must do.) */
#define MP_PYCODE_GENERATION_TELLS(number) ((number) != 0)

static inline uint32_t
mp_pycode_generation(const PyCodeObject *code)
{
    return code->co_version;
}

#else

/* Python numbers nothing, so deaths are counted, by a few bits of the
 * address.  They happen under the GIL, and whoever runs new code at an old
 * address has had it since. */
#define MP_PYCODE_GENERATION_TELLS(number) true
extern atomic_uint mp_pycode_deaths[1 << 12];

static inline atomic_uint *
deaths_at(const void *code)
{
    return &mp_pycode_deaths[(uint64_t)(uintptr_t)code * MP_MIX_A >> 52];
}

static inline uint32_t
mp_pycode_generation(const PyCodeObject *code)
{
    return atomic_load_explicit(deaths_at(code), memory_order_relaxed);
}

#endif

/* Cheap: computed for every frame of every walk. */
static inline uint64_t
mp_pycode_fingerprint(const PyCodeObject *code)
{
    return (uint64_t)(uintptr_t)mp_pycode_name(code) * MP_MIX_A +
           (uint64_t)(uintptr_t)code->co_filename * MP_MIX_B +
           (uint64_t)(uintptr_t)code->co_linetable * MP_MIX_C +
           (((uint64_t)(uint32_t)code->co_firstlineno << 32) ^
            mp_pycode_length(code)) *
               MP_MIX_D +
           mp_pycode_generation(code) * MP_MIX_E;
}

/* Count the deaths of code objects from now on, where Python does not number
 * them; once, with the GIL. */
void mp_pycode_watch(void);

/* The id of a Python text; MP_NO_INDEX: out of memory. */
uint32_t mp_pycode_text(mp_intern_t *intern, PyObject *text);

/* The line of instruction INDEX; 0: it belongs to none. */
uint32_t mp_pycode_line(const PyCodeObject *code, int32_t index);

#endif
#endif
