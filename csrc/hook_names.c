/* hook_names.c - from the name that torch has for an op to what it says. */
#include "hook_names.h"

#include "hook_shared.h"

#include <string.h>

static bool
starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Ops that only make memory for the op that called them. */
static bool
is_plain_allocator(const char *name)
{
    static const char *const names[] = {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::empty_permuted",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::resize_",
        "aten::_empty_affine_quantized",
        "aten::zeros",
        "aten::zeros_like",
        "aten::new_zeros",
        "aten::zero_",
        "aten::fill_",
        "aten::full",
        "aten::ones",
        "aten::ones_like",
        "aten::full_like",
        "aten::resize_output",
        "aten::clone",
        "aten::contiguous",
        "aten::copy_",
        "aten::_to_copy",
        "aten::to",
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Names of ops that have a schema stay where they are for ever, so the
 * pointer finds the id; others die with the op, so the text is compared.  The
 * frame in which the autograd engine runs a node goes by the node's name. */
const mp_op_name_t *
mp_op_name_find(mp_op_names_t *names, const char *text)
{
    static const mp_op_name_t none = {NULL, MP_NO_INDEX, false, false};
    static const char engine_prefix[] =
        "autograd::engine::evaluate_function: ";
    if (text == NULL) {
        return &none;
    }
    bool engine = starts_with(text, engine_prefix);
    if (engine) {
        text += sizeof(engine_prefix) - 1;
    }
    size_t slot =
        ((uintptr_t)text >> 3 ^ (uintptr_t)text >> 11) & (MP_OP_NAMES - 1);
    mp_op_name_t *entry = &names->entries[slot];
    if (entry->pointer == text && entry->engine == engine) {
        const char *known;
        size_t length;
        if (mp_intern_text(mp_the_intern, entry->name, &known, &length) &&
            strcmp(known, text) == 0) {
            return entry;
        }
    }
    uint32_t name = mp_intern_string(mp_the_intern, text, strlen(text));
    *entry = (mp_op_name_t){
        .pointer = text,
        .name = name,
        .plain_allocator = is_plain_allocator(text),
        .engine = engine,
    };
    return name == MP_NO_INDEX ? &none : entry;
}
